"""The command line: flags in, exit status out."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import metadata

from nanoserve.cli import chat, connection, generate, status, top
from nanoserve.errors import NanoserveError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status.

    0: done. 1: the call failed (one line on stderr names code and message), or
    `status` found the server not ready. 2: wrong usage. 130: interrupted.
    """
    args = _parser().parse_args(arguments)
    # A character that the terminal's encoding lacks is no reason to stop.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        args.access = connection.access(args)
        return run(args)
    except NanoserveError as error:
        print(f"nanoserve: {_explain(error, args.access.address)}", file=sys.stderr)
        return EXIT_FAILED
    except ValueError as error:
        print(f"nanoserve: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone, which is its right (`nanoserve ... | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _explain(error: NanoserveError, address: str) -> str:
    line = " ".join(str(error).split())
    if error.unreachable:
        return f"UNAVAILABLE: no server answers at {address}; start one with `make serve`"
    if error.retry_after is not None:
        line += f" (retry after {error.retry_after:g} s)"
    return line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nanoserve", description="Talk to a nanoserve server.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (generate, chat, status, top):
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(
            module.__name__.rpartition(".")[2],
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        connection.add_arguments(command)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _version() -> str:
    try:
        return f"nanoserve {metadata.version('nanoserve')}"
    except metadata.PackageNotFoundError:
        return "nanoserve (not installed)"
