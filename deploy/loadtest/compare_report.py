"""The report of two runs: on the terminal, and as a folder of files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from deploy.loadtest.compare import Comparison
from deploy.loadtest.compare_terminal import print_comparison
from deploy.loadtest.csv_files import write_comparison
from deploy.loadtest.report import add_output_arguments, limits_of
from deploy.loadtest.settings_text import one_line
from deploy.loadtest.summary import Summary
from deploy.loadtest.timeline import Run


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    for name in ("a", "b"):
        metavar = f"{name.upper()}.json"
        parser.add_argument(name, type=Path, metavar=metavar, help="a saved run; .gz is read too")
    add_output_arguments(parser)


def compare_main(args: argparse.Namespace) -> int:
    """Limits of goodput that are not given are those of the first run, for both. Raises
    OSError, and ValueError for a file or limit that is none."""
    runs = Run.load(args.a), Run.load(args.b)
    limits = limits_of(runs[0], args.goodput)
    comparison = Comparison(*(Summary.of(run, limits) for run in runs))
    if args.json:
        json.dump(comparison.to_json(), sys.stdout, indent=1)
        print()
    else:
        print_comparison(comparison, (str(args.a), str(args.b)), Console())
    if args.out:
        write_compare_report(runs, (args.a.name, args.b.name), comparison, args.out)
    return 0


def write_compare_report(
    runs: tuple[Run, Run], names: tuple[str, str], comparison: Comparison, folder: Path
) -> None:
    """compare.json, compare.csv and latencies.png, on which the runs are A and B with
    `names`. Makes the folder. Raises OSError."""
    # matplotlib takes half a second to load, which the terminal need not wait for.
    from deploy.loadtest.plots.latencies import plot_latencies

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_text(json.dumps(comparison.to_json(), indent=1) + "\n")
    write_comparison(comparison, folder / "compare.csv")
    plot_latencies(
        [("A: ", runs[0]), ("B: ", runs[1])],
        comparison.a.limits,
        "\n".join(
            f"{letter}: {name}, {one_line(run.settings)}"
            for letter, name, run in zip("AB", names, runs, strict=True)
        ),
        _void(comparison),
        folder / "latencies.png",
    )


def _void(comparison: Comparison) -> str | None:
    pairs = zip("AB", (comparison.a, comparison.b), strict=True)
    return " and ".join(f"run {name}" for name, run in pairs if run.void) or None
