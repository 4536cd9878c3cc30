"""A run's report: on the terminal, and as a folder of files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from deploy.loadtest.csv_files import write_requests, write_summary
from deploy.loadtest.goodput import Limits
from deploy.loadtest.settings_text import one_line
from deploy.loadtest.summary import Summary
from deploy.loadtest.terminal import print_summary
from deploy.loadtest.timeline import Run


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN.json", help="a saved run; .gz is read too")
    add_output_arguments(parser)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """--goodput, --out and --json, which all that reports has."""
    parser.add_argument(
        "--goodput",
        nargs="+",
        metavar="LIMIT",
        help="limits that a good request meets, in ms: ttft:500 tpot:50 gap:200 e2e:10000 "
        "(default: those of the run)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write JSON, CSV and PNG files there too"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def report_main(args: argparse.Namespace) -> int:
    """Raises OSError, and ValueError for a file or limit that is none."""
    publish(Run.load(args.run), args)
    return 0


def publish(run: Run, args: argparse.Namespace) -> Summary:
    """Prints the report and writes its files, as the output arguments say. Raises OSError,
    and ValueError for a limit that is none."""
    summary = Summary.of(run, limits_of(run, args.goodput))
    if args.json:
        json.dump(summary.to_json(), sys.stdout, indent=1)
        print()
    else:
        print_summary(summary, Console())
    if args.out:
        write_report(run, summary, args.out)
    return summary


def limits_of(run: Run, words: list[str] | None) -> Limits:
    """Those given, else those that the run was made with."""
    return Limits.parse(words) if words else Limits.of_settings(run.settings.get("goodput"))


def write_report(run: Run, summary: Summary, folder: Path) -> None:
    """report.json, summary.csv, requests.csv and the plots. Makes the folder. Raises
    OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(summary.to_json(), indent=1) + "\n")
    write_summary(summary, folder / "summary.csv")
    write_requests(run, summary.limits, folder / "requests.csv")
    write_plots(run, summary, folder)


def write_plots(run: Run, summary: Summary, folder: Path) -> None:
    """latencies.png and over_time.png; server.png if the server's status was sampled;
    load.png of a ramp."""
    # matplotlib takes half a second to load, which the terminal need not wait for.
    from deploy.loadtest.plots.latencies import plot_latencies
    from deploy.loadtest.plots.load import plot_load
    from deploy.loadtest.plots.over_time import plot_over_time
    from deploy.loadtest.plots.server import plot_server

    subtitle = f"{run.started_at}, {one_line(run.settings)}"
    void = summary.lag.void_reason
    plot_latencies([("", run)], summary.limits, subtitle, void, folder / "latencies.png")
    plot_over_time(run, subtitle, void, folder / "over_time.png")
    if run.samples:
        plot_server(run, subtitle, void, folder / "server.png")
    if summary.stages:
        plot_load(summary, subtitle, void, folder / "load.png")
