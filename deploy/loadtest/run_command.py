"""`run`: makes a plan of the flags, runs it, reports it."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from deploy.loadtest.flags_to_plan import plan_from
from deploy.loadtest.fleet import LoadError
from deploy.loadtest.progress_bar import ProgressBar
from deploy.loadtest.report import publish
from deploy.loadtest.run import run_load
from deploy.local.stop_signals import StopSignals

EXIT_DOES_NOT_COUNT = 1
EXIT_WRONG_FLAGS = 2
EXIT_INTERRUPTED = 130


def run_main(args: argparse.Namespace) -> int:
    """Raises OSError and ValueError for files that cannot be read or written."""
    try:
        plan = plan_from(args)
    except ValueError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return EXIT_WRONG_FLAGS
    # Before the run, not after it.
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    if args.save:
        args.save.parent.mkdir(parents=True, exist_ok=True)
    signals = StopSignals()
    try:
        with ProgressBar(plan, Console(stderr=True)) as bar:
            run = run_load(plan, bar.show, signals.asked)
    except LoadError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return EXIT_DOES_NOT_COUNT
    if args.save:
        run.save(args.save)
    summary = publish(run, args)
    if run.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_DOES_NOT_COUNT if summary.void else 0
