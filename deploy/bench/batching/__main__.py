"""`python -m deploy.bench.batching`: what batching buys on this machine, and where it stops
paying; what static batching costs where requests differ in length.

1. Bursts of equal requests: tokens per second against batch size.
2. Seven requests of 4 tokens beside one of 32, and a mix of short and long ones, on 8 rows:
   continuous against static batching.
3. The mix all at once on pools from just enough for its largest request to ample.

Writes CSV files and pictures. On a GPU: --model with a folder of the shape wanted (python -m
deploy.model.random_llama makes one), --batches 1 2 4 ... 512, --clients 4 --frontends 4.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from deploy.bench.batching.loads import Mix
from deploy.bench.batching.measure import Measurements, Sizes
from deploy.bench.batching.report import write_report
from deploy.bench.machine import machine
from deploy.local.progress import Progress
from deploy.model.fetch import fetch

BUSY = 0.5  # a load average from which on figures are not those of the machine
RESULTS = Path(__file__).resolve().parents[1] / "results" / "batching"


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    mix = Mix(args.mix_requests)
    batches = tuple(sorted({1, *args.batches}))
    sizes = Sizes(batches, args.prompt, args.output, args.rounds, mix, args.clients, args.frontends)
    if args.simulate:
        model, name = ("--simulate",), "simulated worker"
    else:
        folder = fetch(args.model)
        model = ("--model", str(folder), "--threads", str(args.threads))
        name = folder.name
    flags = (*model, *shlex.split(args.worker_args))
    title = args.title or _title(name)  # of before the run: it knows of other work
    progress = Progress("bench-batching")
    measurements = Measurements(sizes, flags, progress.show)
    measurements.run()
    progress.show("drawing")
    args.out.mkdir(parents=True, exist_ok=True)
    text = write_report(args.out, sizes, measurements.rates, measurements.bills, title)
    progress.end(f"took {progress.seconds:.0f} s; CSV files and pictures are in {args.out}")
    print(text)
    return 0


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"is {text!r}, must be a number from {least} on")
        return int(text)

    return parse


def _title(model: str) -> str:
    of, load = machine(), os.getloadavg()[0]
    others = f", beside other work (load average {load:.1f})" if load > BUSY else ""
    return f"{model}, {of['cores']} cores of {of['processor']}, {of['date']}{others}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.batching",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="default", help="as for make (default: %(default)s)")
    add("--simulate", action="store_true", help="a simulated worker; see --worker-args")
    sizes = [1, 2, 4, 8, 16, 32, 64]
    add("--batches", type=_at_least(1), nargs="+", default=sizes, help="default: 1 2 4 8 16 32 64")
    add(
        "--prompt",
        type=_at_least(1),
        default=32,
        help="prompt ids of the bursts (default: %(default)s)",
    )
    add(
        "--output", type=_at_least(8), default=64, help="their output tokens (default: %(default)s)"
    )
    add("--rounds", type=_at_least(1), default=3, help="of each burst (default: %(default)s)")
    add("--mix-requests", type=_at_least(8), default=64, help="default: %(default)s")
    add("--clients", type=_at_least(1), default=1, help="of the bursts (default: %(default)s)")
    add("--frontends", type=_at_least(0), default=0, help="likewise (default: %(default)s)")
    threads = len(os.sched_getaffinity(0))
    add("--threads", type=int, default=threads, help="of torch (default: %(default)s)")
    add("--worker-args", default="", metavar="FLAGS", help="more flags for the worker")
    add("--title", help="of what the pictures are (default: model and processor)")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
