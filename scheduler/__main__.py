"""`python -m scheduler`: parses flags and starts the scheduler."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.api.stop_signals import end_on_signals
from scheduler.log_format import FORMATS, start_logging
from scheduler.start_error import StartError

if TYPE_CHECKING:
    from nanoserve.environment import EnvironmentParser


def parser() -> EnvironmentParser:
    # Here: it brings gRPC, which takes a while, and the signal handlers come first.
    from nanoserve.environment import EnvironmentParser

    result = EnvironmentParser(
        prog="python -m scheduler",
        description="Schedules requests on a nanoserve worker and serves clients. SIGTERM or "
        "SIGINT drains: running calls finish, new ones are refused. A second signal stops at once. "
        "Every flag may be given as NANOSERVE_<FLAG> in the environment.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_model_flags(result.add_argument_group("model"))
    _add_server_flags(result.add_argument_group("towards clients"))
    _add_worker_flags(result.add_argument_group("towards the worker"))
    _add_step_flags(result.add_argument_group("steps"))
    _add_queue_flags(result.add_argument_group("who may wait"))
    _add_policy_flags(result.add_argument_group("who runs when"))
    _add_watching_flags(result.add_argument_group("metrics and logs"))
    result.add_print_config()
    return result


def _add_model_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        metavar="DIR",
        help="Hugging Face model folder, read for its tokenizer and config.json; a worker with "
        "another config.json is refused",
    )
    group.add_argument(
        "--no-tokenizer",
        action="store_true",
        help="serve token ids only; --model may then be left out, and any worker is taken",
    )


def _add_server_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--listen",
        metavar="ADDRESS",
        default="127.0.0.1:50051",
        help="HOST:PORT (port 0: any free one, see the log) or unix:PATH",
    )
    group.add_argument(
        "--frontends",
        metavar="N",
        type=int,
        default=0,
        help="processes that share the port and do the text work of clients; 0: none, it is done "
        "in the engine's process; more than 1 need HOST:PORT, and clients with several channels",
    )
    # One of those processes: the file descriptor of its socket to the engine, and its number.
    group.add_argument("--front-end", type=_front_end, help=argparse.SUPPRESS)
    group.add_argument(
        "--tls-cert",
        metavar="FILE",
        help="certificate for the clients' port, PEM, with those that signed it if need be; a "
        "file that changes is read again",
    )
    group.add_argument("--tls-key", metavar="FILE", help="its key, PEM, without a passphrase")
    group.add_argument(
        "--token-hashes",
        metavar="FILE",
        help="hashes of the tokens of which every call but health must have one, NAME:HASH a "
        "line (python -m deploy.secrets token); a file that changes is read again",
    )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="allow addresses beyond this machine, of clients and of the worker, without TLS and "
        "tokens",
    )
    group.add_argument(
        "--drain-timeout",
        metavar="SECONDS",
        type=float,
        default=30.0,
        help="how long running calls may go on after the first signal",
    )
    group.add_argument(
        "--max-request-seconds",
        metavar="SECONDS",
        type=float,
        default=3600.0,
        help="longest time of a call that comes without a deadline",
    )


def _add_watching_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--metrics-listen",
        metavar="ADDRESS",
        default="127.0.0.1:9101",
        help="HOST:PORT (port 0: any free one, see the log) of /metrics for Prometheus, or off",
    )
    group.add_argument(
        "--metrics-unprotected",
        action="store_true",
        help="allow --metrics-listen beyond this machine; metrics know neither TLS nor tokens",
    )
    group.add_argument(
        "--max-streams-per-connection",
        metavar="CALLS",
        type=int,
        default=1024,
        help="calls at a time on one connection; a client holds more of them back itself",
    )
    group.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="on stderr; warning leaves out the line that each request ends with",
    )
    group.add_argument(
        "--log-format",
        choices=FORMATS,
        default="human",
        help="human: a line for people; json: one object a line",
    )
    group.add_argument(
        "--log-text",
        action="store_true",
        help="log prompts and outputs with the requests; without it no text is logged",
    )


def _front_end(text: str) -> tuple[int, int]:
    descriptor, _, number = text.partition(":")
    return int(descriptor), int(number)


def _add_worker_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--worker",
        metavar="ADDRESS",
        default="127.0.0.1:50052",
        help="the worker's HOST:PORT or unix:PATH; it may start later",
    )
    for flag, text in (
        ("ca", "CA that must have signed the worker's certificate, PEM; with it the link is TLS"),
        ("cert", "the scheduler's certificate towards the worker, PEM"),
        ("key", "its key, PEM, without a passphrase"),
    ):
        group.add_argument(f"--worker-tls-{flag}", metavar="FILE", help=text)
    group.add_argument(
        "--step-timeout",
        metavar="SECONDS",
        type=float,
        help="longest wait for a step's answer; then the worker's pool is given up and every "
        "running request recomputed; None: 450 with a worker on a CPU, else 90",
    )
    group.add_argument(
        "--recovery-timeout",
        metavar="SECONDS",
        type=float,
        default=300.0,
        help="how long requests wait for a worker that is away before they end with UNAVAILABLE",
    )
    group.add_argument(
        "--stuck-timeout",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="how long the engine's loop may stand before the process ends with status 1, for its "
        "supervisor to start it again; 0: for ever",
    )


def _add_step_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--pipeline-depth",
        metavar="STEPS",
        type=int,
        help="most steps in flight; None: 2 with a worker on a CPU, else 6",
    )
    group.add_argument(
        "--decode-steps",
        metavar="N",
        type=int,
        default=1,
        help="most tokens that a step makes for each request when it has no prompt to compute and "
        "nobody who waits could be in it; a cancel, an end token or a stop string then wastes up "
        "to --pipeline-depth x N tokens. Fewer where a request is nearer to its length, blocks "
        "are short, or the step would take longer than 2 ms, so that an arrival waits as long as "
        "without. At most the worker's --max-decode-steps",
    )
    group.add_argument(
        "--max-step-tokens",
        metavar="TOKENS",
        type=int,
        help="most tokens of one step; None: 512 with a worker on a CPU, else the worker's limit",
    )
    group.add_argument(
        "--no-prefix-cache",
        action="store_true",
        help="compute every prompt whole; without it, what requests begin with is computed once "
        "and stays in the K/V pool, as far as that has room",
    )
    group.add_argument(
        "--audit", action="store_true", help="check the books after every step (slower)"
    )


def _add_queue_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-queue",
        metavar="REQUESTS",
        type=int,
        default=1024,
        help="most requests beyond one for each row; more are refused with RESOURCE_EXHAUSTED",
    )
    group.add_argument(
        "--max-queue-tokens",
        metavar="TOKENS",
        type=int,
        help="most tokens of the waiting requests together, so that memory is bounded",
    )
    group.add_argument(
        "--max-queue-wait",
        metavar="SECONDS",
        type=float,
        help="a request that would wait longer for its first step is refused with "
        "RESOURCE_EXHAUSTED when it comes, so that under overload those that are taken are served "
        "in time",
    )


def _add_policy_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--policy",
        choices=("continuous", "static"),
        default="continuous",
        help="continuous: requests join and leave between any two steps; static: one batch at a "
        "time is admitted together and runs until its slowest request is done, for comparison",
    )
    group.add_argument(
        "--static-batch",
        metavar="REQUESTS",
        type=int,
        help="most requests of a static batch; None: the worker's rows",
    )
    group.add_argument(
        "--static-wait",
        metavar="SECONDS",
        type=float,
        help="how long a static batch that is not full waits for more, from its first request's "
        "arrival on; None: 0",
    )
    group.add_argument(
        "--static-return",
        choices=("each", "batch"),
        help="when a request of a static batch ends: at its own last token, or when its batch "
        "does; None: each",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a drain, 1 if it cannot start, 2 for wrong flags."""
    end_on_signals()
    given = sys.argv[1:] if arguments is None else arguments
    flags = parser().parse_with(given, os.environ)
    if flags.model is None and not flags.no_tokenizer:
        parser().error("give --model DIR, or --no-tokenizer to serve token ids only")
    static = {flags.static_batch, flags.static_wait, flags.static_return}
    if flags.policy != "static" and static != {None}:
        parser().error("--static-batch, --static-wait and --static-return need --policy static")
    number = flags.front_end[1] if flags.front_end else None
    start_logging(flags.log_level, flags.log_format, number)
    try:
        return _run(flags, given)
    except StartError as error:
        logging.getLogger("scheduler").error("cannot start: %s", error)
        return 1


def _run(flags: argparse.Namespace, arguments: Sequence[str]) -> int:
    """The exit status. Raises StartError."""
    # After the flags, so that --help and a wrong flag need no libraries.
    if flags.front_end:
        from scheduler.run_apart import run_front_end

        return run_front_end(flags)
    if flags.frontends:
        from scheduler.run_apart import run_apart

        run_apart(flags, arguments)
    else:
        from scheduler.run import run

        run(flags)
    return 0


if __name__ == "__main__":
    sys.exit(main())
