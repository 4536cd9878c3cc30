"""Watch the server at work: rates, latencies, rows and the block pool, live.

On a terminal one picture that changes; q or Ctrl-C ends. Into a pipe or file, on a dumb
terminal and with --once, pictures one below the other. Colours are left out with NO_COLOR.
"""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=float,
        metavar="SECONDS",
        help="between two statuses, 0.1 to 60 (default: 1)",
    )
    parser.add_argument(
        "--once", action="store_true", help="print one picture, of one interval, and end"
    )


def run(args: argparse.Namespace) -> int:
    try:
        from nanoserve.cli.dashboard.show import show
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "rich":
            raise
        print(
            "nanoserve: top draws with rich, which is not installed: pip install 'nanoserve[top]'",
            file=sys.stderr,
        )
        return 1
    show(args.access, args.interval, args.once)
    return 0
