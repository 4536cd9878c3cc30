"""`python -m worker`: parses flags and starts the process."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from worker.stop_signals import StopSignals

if TYPE_CHECKING:
    from nanoserve.environment import EnvironmentParser
    from nanoserve.tls import TlsFlags

_Add = Callable[..., None]
_SIMULATED = "simulated worker (no torch, no weights)"
_MODEL = "model and pool"
# Of that group, those that a simulated worker has as well.
_POOL = frozenset(("--model", "--num-blocks", "--block-size"))


def parser() -> EnvironmentParser:
    # Here: it brings gRPC, which takes a while, and the signal handlers come first.
    from nanoserve.environment import EnvironmentParser

    result = EnvironmentParser(
        prog="python -m worker",
        description="Holds the model and its K/V pool and runs the steps of one scheduler. Every "
        "flag may be given as NANOSERVE_<FLAG> in the environment.",
        epilog="python -m worker replay FILE runs recorded steps again: see replay --help.",
    )
    _add_process(_adder(result))
    _add_model(_adder(result.add_argument_group(_MODEL)))
    _add_limits(_adder(result.add_argument_group("limits, which the scheduler learns")))
    _add_recording(_adder(result.add_argument_group("recordings, for python -m worker replay")))
    _add_simulation(_adder(result.add_argument_group(_SIMULATED)))
    result.add_print_config()
    return result


def replay_parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m worker replay",
        description="Runs the steps of a recording again, one at a time, and compares tokens, "
        "flags and refusals. Flags that are not given are as the recorded worker had them. Exit "
        "status: 0 equal, 1 different, 2 not to be replayed.",
    )
    text = "what --record wrote, or a file of a --dump-dir"
    result.add_argument("recording", type=Path, metavar="FILE", help=text)
    _add_log(_adder(result))
    _add_model(_adder(result.add_argument_group(_MODEL)))
    _add_limits(_adder(result.add_argument_group("limits")))
    _add_simulation(_adder(result.add_argument_group(_SIMULATED)))
    return result


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The flags, of the command line unless `arguments` are given."""
    flags = parser()
    given = sys.argv[1:] if arguments is None else arguments
    options = flags.parse_with(given, os.environ)
    if not options.simulate and options.model is None:
        flags.error("--model DIR is needed, or --simulate")
    if options.simulate:
        idle, word = _given(flags, options, _MODEL) - _POOL, "with"
    else:
        idle, word = _given(flags, options, _SIMULATED), "without"
    if idle:
        flags.error(f"{', '.join(sorted(idle))}: of no effect {word} --simulate")
    return options


def _given(flags: argparse.ArgumentParser, options: argparse.Namespace, title: str) -> set[str]:
    """What is given of the flags of a group."""
    (group,) = (group for group in flags._action_groups if group.title == title)
    return {
        action.option_strings[0]
        for action in group._group_actions
        if getattr(options, action.dest) != action.default
    }


def _add_process(add: _Add) -> None:
    add("--listen", "HOST:PORT (port 0: a free one) or unix:PATH", "127.0.0.1:50052", "ADDRESS")
    where = "HOST:PORT (port 0: a free one) where /metrics is served, or off"
    add("--metrics-listen", where, "127.0.0.1:9102", "ADDRESS")
    others = "allow --metrics-listen where other machines can reach it, without encryption"
    add("--metrics-unprotected", others, False)
    add("--drain-timeout", "how long an open stream may go on after SIGTERM", 30.0, "SECONDS")
    own = "the worker's certificate, PEM; with these three, who connects must have one too"
    add("--tls-cert", own, str, "FILE", "no TLS")
    add("--tls-key", "the certificate's key, PEM, without a passphrase", str, "FILE", "no TLS")
    ca = "CA that must have signed the scheduler's certificate, PEM"
    add("--tls-client-ca", ca, str, "FILE", "no TLS")
    add("--insecure", "listen where other machines can reach it, without TLS", False)
    _add_log(add)


def _add_log(add: _Add) -> None:
    add("--debug", "compare every slot with the row's block table, and log more", False)
    add("--log-format", "of the log, on stderr", "human", choices=("human", "json"))


def _add_model(add: _Add) -> None:
    add("--model", "Hugging Face model folder", Path, "DIR", "none, needed but for --simulate")
    devices, dtypes = ("auto", "cpu", "cuda"), ("auto", "float32", "bfloat16", "float16")
    add("--device", "auto: cuda if there is one", "auto", choices=devices)
    add("--dtype", "auto: the model's own", "auto", choices=dtypes)
    fill = "as many as fit a GPU's --gpu-memory-utilization or a quarter of a CPU's free memory, "
    fill += "there at most 4 GiB; simulated: 4096"
    add("--num-blocks", "blocks of the K/V pool, the scratch block included", int, "BLOCKS", fill)
    size = "size of the K/V pool, in bytes or such as 8GiB, instead of --num-blocks"
    add("--kv-memory", size, str, "SIZE", "as --num-blocks")
    share = "part of a GPU's memory to fill, 0 to 1, without either"
    add("--gpu-memory-utilization", share, 0.9, "SHARE")
    add("--block-size", "length of a block", 16, "TOKENS")
    add("--no-cuda-graphs", "on a GPU, launch a step's kernels one by one", False)
    same = "on a GPU, give a token the same bits whatever is computed with it and however a prompt "
    same += "is cut, at some cost in speed; on a CPU they are so anyway"
    add("--batch-invariant", same, False)
    add("--threads", "CPU threads of torch", int, "N", "one per core")


def _add_limits(add: _Add) -> None:
    rows = "512 on CUDA, 256 elsewhere"
    add("--max-rows", "requests that run at a time", int, "ROWS", rows)
    add("--max-model-len", "longest prompt and output together", int, "TOKENS", "the model's limit")
    most = "8192 on CUDA, 2048 elsewhere, or --max-rows if that is more"
    add("--max-step-tokens", "largest step", int, "TOKENS", most)
    add("--max-steps-in-flight", "unanswered steps", 8, "STEPS")
    timeout = "longest that a step may take; then the process ends with status 1"
    add("--step-timeout", timeout, float, "SECONDS", "60 on CUDA, 300 on a CPU, 60 simulated")
    add("--max-decode-steps", "decode repetitions of one step", 8, "N")


def _add_recording(add: _Add) -> None:
    every = "write every step with its results, prompts included; FILE.2, ... if FILE is there"
    add("--record", every, Path, "FILE", "none")
    last = "keep the last steps before one that was refused or fatal, in at most 5 files"
    add("--dump-dir", last, Path, "DIR", "none")
    add("--dump-prompts", "in those, keep token ids too, which otherwise are zeros", False)


def _add_simulation(add: _Add) -> None:
    add("--simulate", "answer tokens that are a function of the row's own", False)
    add("--vocab-size", "number of token ids", int, "IDS", "that of --model, or 32000")
    add("--step-ms", "device time of a step, in milliseconds", 0.0, "MS")
    add("--token-us", "device time added per query token, in microseconds", 0.0, "US")
    script = "JSON list of ids to answer by output position; the last repeats"
    add("--script", script, Path, "FILE", "none")
    add("--avoid-tokens", "ids never drawn, such as end tokens", _ids, "ID,ID", "none")
    add("--non-finite-tokens", "a row that ends on one is not finite", _ids, "ID,ID", "none")
    add("--crash-tokens", "a step that computes one is fatal", _ids, "ID,ID", "none")
    hang = "a step that computes one never ends, nor lets other threads run"
    add("--hang-tokens", hang, _ids, "ID,ID", "none")


def _adder(group: argparse._ActionsContainer) -> _Add:
    """Adds a flag: without a value for the default False, else of `default`'s type, or of the type
    that `default` is, with `unset` to tell what holds where the flag is not given."""

    def add(
        name: str, text: str, default: Any, metavar: str = "", unset: str = "", **more: Any
    ) -> None:
        if default is False:
            group.add_argument(name, action="store_true", help=f"{text} (default: off)")
            return
        given = {"type": default} if unset else {"type": type(default), "default": default}
        shown = unset or default
        group.add_argument(
            name, metavar=metavar or None, help=f"{text} (default: {shown})", **given, **more
        )

    return add


def _ids(text: str) -> frozenset[int]:
    parts = [part for part in text.split(",") if part]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} must be token ids, with commas in between")
    return frozenset(map(int, parts))


def _tls_flags(options: argparse.Namespace) -> TlsFlags | None:
    """Raises ValueError if some are given and some are not."""
    from nanoserve.reloaded import all_or_none
    from nanoserve.tls import TlsFlags

    cert = ("--tls-cert", options.tls_cert)
    key = ("--tls-key", options.tls_key)
    ca = ("--tls-client-ca", options.tls_client_ca)
    return TlsFlags(cert, key, ca) if all_or_none(cert, key, ca) else None


def main() -> NoReturn:
    if sys.argv[1:2] == ["replay"]:
        from worker.replay import main as replay

        sys.exit(replay(sys.argv[2:], replay_parser()))
    signals = StopSignals()
    options = parse()
    # After the handlers are in place: these take a while.
    from worker.address import ListenAddress, metrics_address
    from worker.log import start_logging
    from worker.process import ProcessOptions, exit_on_fatal, run
    from worker.recording_flags import make_recorders
    from worker.start import make_watched_executor
    from worker.watchdog import check_timeout

    start_logging("debug" if options.debug else "info", options.log_format)
    try:
        process = ProcessOptions(
            listen=ListenAddress(options.listen),
            metrics=metrics_address(options.metrics_listen),
            tls=_tls_flags(options),
            insecure=options.insecure,
            metrics_unprotected=options.metrics_unprotected,
            drain_timeout=options.drain_timeout,
            check_slots=options.debug or options.simulate,
        )
        check_timeout(options.step_timeout)
        recorders = make_recorders(parser(), options)
    except ValueError as error:
        print(f"python -m worker: {error}", file=sys.stderr)
        sys.exit(2)
    on_hang = recorders.before(exit_on_fatal)
    run(signals, process, lambda: make_watched_executor(options, on_hang), recorders)


if __name__ == "__main__":
    main()
