"""`python -m deploy.bench.split`: what the split into two processes costs.

The same load goes to scheduler and worker as two processes and to both halves in one
process, in turn. A pair is one run of each; the cost is the median over pairs of
T(two) / T(one) - 1, with the 95 % interval of that median by bootstrap.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.bench.batch import Batch
from deploy.bench.interval import median_interval
from deploy.bench.machine import machine
from deploy.bench.ready import READY_SECONDS, wait_until_ready
from deploy.local.child import Child
from deploy.local.progress import Progress
from deploy.local.servers import Servers, ServerSettings
from deploy.local.stop_signals import Unasked
from deploy.model.fetch import fetch

# The same prompts come again and again, and are to be computed each time.
_WHOLE_PROMPTS = "--no-prefix-cache"


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    folder = fetch(args.model)
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    worker_flags = ("--threads", str(args.threads), *shlex.split(args.worker_args))
    progress = Progress("bench-split")
    ratios: dict[int, list[float]] = {streams: [] for streams in args.streams}
    with _two(folder, worker_flags, progress) as two, _one(folder, worker_flags) as one:
        for address in (two, one):
            Batch(max(args.streams), args.prompt, vocab_size, 0).run(address, 8)
        for pair in range(1, args.pairs + 1):
            for streams in args.streams:
                progress.show(f"pair {pair} of {args.pairs}, {streams} streams")
                batch = Batch(streams, args.prompt, vocab_size, pair)
                order = (two, one) if pair % 2 else (one, two)
                seconds = {a: batch.run(a, args.output).end for a in order}
                ratios[streams].append(seconds[two] / seconds[one])
    progress.end(f"{args.pairs} pairs took {progress.seconds:.0f} s")
    for streams, values in ratios.items():
        low, high = median_interval(values)
        cost = statistics.median(values) - 1
        print(
            f"{streams} streams: two processes take {100 * cost:+.1f} % "
            f"(95 %: {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %)"
        )
    if args.json:
        report = {"ratios": ratios, "machine": machine()}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


@contextmanager
def _two(folder: Path, worker_flags: tuple[str, ...], progress: Progress) -> Iterator[str]:
    settings = ServerSettings(
        model=folder,
        listen=None,
        simulate=False,
        worker_args=worker_flags,
        scheduler_args=(_WHOLE_PROMPTS,),
        echo=False,
        stop_patience=40.0,
    )
    with Servers(settings, Unasked()) as servers:
        servers.wait_until_ready(READY_SECONDS, progress.show)
        yield servers.address


@contextmanager
def _one(folder: Path, worker_flags: tuple[str, ...]) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="nanoserve-") as socket_folder:
        address = f"unix:{socket_folder}/scheduler.sock"
        model = ("--model", str(folder))
        link = ("--listen", address, "--metrics-listen", "off")
        flags = (*model, *worker_flags, "--", *model, *link, _WHOLE_PROMPTS)
        child = Child("server", [sys.executable, "-m", "deploy.bench.one_process", *flags], False)
        try:
            wait_until_ready(address, child)
            yield address
        finally:
            child.stop(20.0, Unasked().asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.split",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="default", help="as for make (default: %(default)s)")
    add("--streams", type=int, nargs="+", default=[8], help="default: 8")
    add("--prompt", type=int, default=32, help="prompt ids (default: %(default)s)")
    add("--output", type=int, default=64, help="output tokens (default: %(default)s)")
    add("--pairs", type=int, default=10, help="default: %(default)s")
    threads = len(os.sched_getaffinity(0))
    add("--threads", type=int, default=threads, help="of torch, each (default: %(default)s)")
    add("--worker-args", default="", metavar="FLAGS", help="more flags for both workers")
    add("--json", type=Path, metavar="FILE", help="write every ratio there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
