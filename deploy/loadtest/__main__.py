"""`python -m deploy.loadtest`: puts load on a server and reports what it did.

run sends requests and reports; report and compare read runs that were saved.
"""

from __future__ import annotations

import argparse
import sys

from deploy.loadtest.compare_report import add_compare_arguments, compare_main
from deploy.loadtest.flags import add_run_arguments
from deploy.loadtest.report import add_output_arguments, add_report_arguments, report_main
from deploy.loadtest.run_command import run_main

EXIT_FAILED = 1


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: done, and for a run that it counts; 1: it does not, or failed; 2:
    wrong flags; 130: interrupted by Ctrl-C, with a report of what there was."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        return int(args.main(args))
    except (OSError, ValueError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.loadtest",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    modes = parser.add_subparsers(required=True, metavar="MODE")
    run = modes.add_parser("run", help="put load on a server", usage=_USAGE, description=_RUN)
    add_run_arguments(run)
    add_output_arguments(run)
    run.set_defaults(main=run_main)
    report = modes.add_parser("report", help="report a saved run")
    add_report_arguments(report)
    report.set_defaults(main=report_main)
    compare = modes.add_parser("compare", help="two saved runs side by side")
    add_compare_arguments(compare)
    compare.set_defaults(main=compare_main)
    return parser


_USAGE = "%(prog)s [target] (--rate R | --concurrency N | --burst | --ramp R | --replay) [flags]"
_RUN = (
    "Sends requests from processes of its own and reports latencies, rates and failures. "
    "Latencies count from the time that the schedule says, however late a request was sent; a "
    "run in which the tool itself sent late (p99 over 5 ms) does not count, and the exit status "
    "says so. Ctrl-C ends a run early and reports what there is."
)


if __name__ == "__main__":
    sys.exit(main())
