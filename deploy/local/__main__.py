"""`python -m deploy.local`: worker and scheduler on this machine, started and stopped
together.

serve runs both in the foreground until Ctrl-C, which drains them; a second Ctrl-C kills
them. A worker that ends meanwhile is started again. run starts both on a unix socket, runs
a command against them (its NANOSERVE_ADDRESS is set) and stops them again; its exit status
is the command's.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from deploy.local.child import tied
from deploy.local.progress import Progress
from deploy.local.servers import AddressTaken, Interrupted, ServerDied, Servers, ServerSettings
from deploy.local.stop_signals import StopSignals

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: stopped as asked; 1: a server failed; otherwise the command's."""
    args = _parser().parse_args(arguments)
    settings = ServerSettings(
        model=args.model.resolve() if args.model else None,
        listen=args.listen,
        simulate=args.simulate,
        worker_args=tuple(shlex.split(args.worker_args)),
        scheduler_args=tuple(shlex.split(args.scheduler_args)),
        echo=args.command is None or args.verbose,
        stop_patience=args.stop_timeout,
        restart_worker=args.command is None,
    )
    signals = StopSignals()
    try:
        with Servers(settings, signals) as servers:
            progress = Progress("starting worker and scheduler")
            servers.wait_until_ready(
                args.ready_timeout, (lambda _: None) if settings.echo else progress.show
            )
            progress.end(f"ready at {servers.address} after {progress.seconds:.1f} s")
            if args.command:
                status = _run(servers, signals, args.command)
            else:
                status = _serve(servers, signals)
            complaints = servers.stop()
    except Interrupted:
        return EXIT_INTERRUPTED if args.command else 0
    except (AddressTaken, ServerDied, TimeoutError) as error:
        print(f"deploy.local: {error}", file=sys.stderr)
        return EXIT_FAILED
    for complaint in complaints:
        print(f"deploy.local: {complaint}", file=sys.stderr)
    return status or (EXIT_FAILED if complaints else 0)


def _serve(servers: Servers, signals: StopSignals) -> int:
    """Until asked to stop. Raises ServerDied."""
    while not signals.asked.wait(0.1):
        servers.check()
    print("stopping: running requests finish; Ctrl-C again to kill", file=sys.stderr)
    return 0


def _run(servers: Servers, signals: StopSignals, command: list[str]) -> int:
    """The command's exit status. It shares our terminal, so Ctrl-C reaches it too, and
    what that means is its business: `nanoserve chat` goes on. Raises ServerDied."""
    environment = os.environ | {"NANOSERVE_ADDRESS": servers.address}
    with signals.leave_interrupts_to_command():
        process = subprocess.Popen(tied(command), env=environment)
        try:
            while (status := process.poll()) is None:
                servers.check()
                if signals.asked_twice.is_set():
                    process.kill()
                elif signals.asked.is_set():
                    process.terminate()
                time.sleep(0.02)
        except ServerDied:
            process.kill()
            process.wait()
            raise
    return status if status >= 0 else 128 - status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.local",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    modes = parser.add_subparsers(required=True, metavar="MODE")
    serve = modes.add_parser("serve", help="run both in the foreground")
    serve.add_argument(
        "--listen",
        type=_address,
        default="127.0.0.1:50051",
        help="the scheduler's address (default: %(default)s)",
    )
    serve.set_defaults(command=None)
    run = modes.add_parser("run", help="run a command against them")
    run.add_argument("--verbose", action="store_true", help="show the servers' output")
    run.add_argument("command", nargs="+", metavar="COMMAND", help="after --")
    run.set_defaults(listen=None)
    for mode in (serve, run):
        _add_server_flags(mode)
    return parser


def _address(text: str) -> str:
    if text.endswith(":0"):
        raise argparse.ArgumentTypeError(f"{text}: give the port that clients are to use, not 0")
    return text


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, help="a Hugging Face model folder")
    parser.add_argument("--simulate", action="store_true", help="start the simulated worker")
    parser.add_argument(
        "--worker-args", default="", metavar="FLAGS", help="more flags for the worker, one string"
    )
    parser.add_argument(
        "--scheduler-args", default="", metavar="FLAGS", help="more flags for the scheduler"
    )
    parser.add_argument(
        "--ready-timeout",
        type=float,
        default=1800,
        metavar="SECONDS",
        help="most time to become ready (default: %(default)s s)",
    )
    parser.add_argument(
        "--stop-timeout",
        type=float,
        default=40,
        metavar="SECONDS",
        help="most time for the scheduler to drain before it is killed (default: %(default)s s)",
    )


if __name__ == "__main__":
    sys.exit(main())
