"""`python -m deploy.bench.start`: seconds from the scheduler's start to its readiness, with
the default model's tokenizer and a (simulated) worker that is up already.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from deploy.bench.ready import free_address, wait_until_ready
from deploy.local.child import Child
from deploy.local.stop_signals import Unasked
from deploy.model.fetch import fetch

STOP_SECONDS = 20.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.start", description=__doc__)
    parser.add_argument("--model", default="default", help="as for make (default: %(default)s)")
    parser.add_argument("--starts", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--frontends", type=int, default=0, help="default: %(default)s")
    args = parser.parse_args(arguments)
    frontends = ("--frontends", str(args.frontends))
    model = ("--model", str(fetch(args.model)))
    with tempfile.TemporaryDirectory(prefix="nanoserve-") as folder:
        worker_address = f"unix:{folder}/worker.sock"
        listen = ("--listen", worker_address, "--metrics-listen", "off")
        worker = _start("worker", "--simulate", *model, *listen)
        try:
            while not Path(f"{folder}/worker.sock").exists():
                time.sleep(0.05)
            flags = (*model, "--worker", worker_address, *frontends)
            seconds = [_ready_after(flags) for _ in range(args.starts)]
        finally:
            worker.stop(STOP_SECONDS, Unasked().asked)
    print(
        f"scheduler start to ready: median {statistics.median(seconds):.2f} s, "
        f"{min(seconds):.2f} to {max(seconds):.2f} s over {len(seconds)} starts"
    )
    return 0


def _ready_after(flags: tuple[str, ...]) -> float:
    address = free_address()
    start = time.perf_counter()
    own = ("--listen", address, "--metrics-listen", "off")
    scheduler = _start("scheduler", *flags, *own)
    try:
        wait_until_ready(address, scheduler)
        return time.perf_counter() - start
    finally:
        scheduler.stop(STOP_SECONDS, Unasked().asked)


def _start(name: str, *flags: str) -> Child:
    return Child(name, [sys.executable, "-m", name, *flags], echo=False)


if __name__ == "__main__":
    sys.exit(main())
