"""`run`: makes a plan of the flags, runs it, reports it."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console

from deploy.loadtest.flags import plan_from
from deploy.loadtest.fleet import LoadError
from deploy.loadtest.progress_bar import ProgressBar
from deploy.loadtest.report import limits_of, write_report
from deploy.loadtest.run import run_load
from deploy.loadtest.summary import Summary
from deploy.loadtest.terminal import print_summary
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
    signals = StopSignals()
    try:
        with ProgressBar(plan, Console(stderr=True)) as bar:
            run = run_load(plan, bar.show, signals.asked)
    except LoadError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return EXIT_DOES_NOT_COUNT
    if args.save:
        run.save(args.save)
    summary = Summary.of(run, limits_of(run, args.goodput))
    if args.json:
        json.dump(summary.to_json(), sys.stdout, indent=1)
        print()
    else:
        print_summary(summary, Console())
    if args.out:
        write_report(run, summary, args.out)
    if run.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_DOES_NOT_COUNT if summary.lag.void_reason else 0
