"""`python -m deploy.bench.scrape`: what being scraped costs the scheduler, or the worker.

Scheduler and simulated worker run as two processes under a steady load, whose clients are a
third. Windows of time with and without a scraper take turns. Two costs are told, each as the
median over pairs with its 95 % interval by bootstrap: of time, steps(without) / steps(with) - 1,
and of that process's CPU time for a step, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from deploy.bench.interval import median_interval
from deploy.bench.ready import READY_SECONDS
from deploy.loadtest.arrivals import Closed
from deploy.loadtest.lengths import Fixed
from deploy.loadtest.plan import Content, LoadPlan, Nanoserve
from deploy.loadtest.run import run_load
from deploy.local.child import Child
from deploy.local.progress import Progress
from deploy.local.servers import Servers, ServerSettings
from deploy.local.stop_signals import Unasked
from nanoserve import Client

VOCAB_SIZE = 32000
WARM_UP_SECONDS = 3.0
METRICS = ("--metrics-listen", "127.0.0.1:0")


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    progress = Progress("bench-scrape")
    windows: dict[bool, list[_Window]] = {True: [], False: []}
    scrapes: list[float] = []
    with _servers(args.step_ms, progress) as servers:
        child = servers.child(args.of)
        url, process = _metrics_url(child), psutil.Process(child.pid)
        with _load(servers.address, args.streams), Client(servers.address) as client:
            time.sleep(WARM_UP_SECONDS)
            for pair in range(1, args.pairs + 1):
                progress.show(f"pair {pair} of {args.pairs}")
                for scraping in (True, False) if pair % 2 else (False, True):
                    with _scraper(url, args.interval if scraping else None, scrapes):
                        windows[scraping].append(_window(client, process, args.seconds))
    progress.end(f"{args.pairs} pairs took {progress.seconds:.0f} s")
    without, with_one = windows[False], windows[True]
    print(
        f"{_median(w.steps_per_second for w in without):.0f} steps a second without a scraper, "
        f"{_median(w.steps_per_second for w in with_one):.0f} with one every {args.interval:g} s; "
        f"a scrape takes {1000 * _median(scrapes):.1f} ms"
    )
    pairs = list(zip(without, with_one, strict=True))
    print("cost in time:", _cost([a.steps_per_second / b.steps_per_second for a, b in pairs]))
    print(
        f"CPU time of a step: {1e6 * _median(w.cpu_per_step for w in without):.0f} us; cost:",
        _cost([b.cpu_per_step / a.cpu_per_step for a, b in pairs]),
    )
    return 0


@dataclass(frozen=True, slots=True)
class _Window:
    steps_per_second: float
    cpu_per_step: float  # seconds, of the process that is scraped


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _cost(ratios: list[float]) -> str:
    low, high = median_interval(ratios)
    cost = statistics.median(ratios) - 1
    return f"{100 * cost:+.2f} % (95 %: {100 * (low - 1):+.2f} to {100 * (high - 1):+.2f} %)"


@contextmanager
def _servers(step_ms: float, progress: Progress) -> Iterator[Servers]:
    settings = ServerSettings(
        model=None,
        listen=None,
        simulate=True,
        worker_args=("--vocab-size", str(VOCAB_SIZE), "--step-ms", str(step_ms), *METRICS),
        scheduler_args=("--no-tokenizer", "--no-prefix-cache", *METRICS),
        echo=False,
        stop_patience=40.0,
    )
    with Servers(settings, Unasked()) as servers:
        servers.wait_until_ready(READY_SECONDS, progress.show)
        yield servers


def _metrics_url(child: Child) -> str:
    found = re.search(r"metrics at (http://\S+)", "\n".join(child.lines))
    if found is None:
        raise RuntimeError(f"the {child.name}'s log does not tell where its metrics are")
    return found[1]


@contextmanager
def _load(address: str, streams: int) -> Iterator[None]:
    """Keeps `streams` requests open until the block ends."""
    stop = threading.Event()
    plan = LoadPlan(
        Nanoserve(address),
        Closed(streams),
        Content(Fixed(32), Fixed(500)),
        seconds=3600,
        processes=1,
        sample_interval=0,  # status is not to be asked beside what is measured
    )
    thread = threading.Thread(target=run_load, args=(plan, lambda *_: None, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _scraper(url: str, interval: float | None, seconds: list[float]) -> Iterator[None]:
    """Scrapes every `interval` seconds while the block runs, and notes how long each took."""
    stop = threading.Event()

    def scrape() -> None:
        while interval is not None and not stop.is_set():
            start = time.perf_counter()
            with urllib.request.urlopen(url, timeout=10) as response:
                response.read()
            seconds.append(time.perf_counter() - start)
            stop.wait(interval)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _window(client: Client, process: psutil.Process, seconds: float) -> _Window:
    start, before, cpu = time.perf_counter(), client.status().steps, process.cpu_times()
    time.sleep(seconds)
    steps, after = client.status().steps - before, process.cpu_times()
    cpu_seconds = after.user + after.system - cpu.user - cpu.system
    return _Window(steps / (time.perf_counter() - start), cpu_seconds / steps)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.scrape",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--of", choices=("scheduler", "worker"), default="scheduler", help="who is scraped")
    add("--streams", type=int, default=8, help="requests at a time (default: %(default)s)")
    add("--step-ms", type=float, default=0.0, help="of the worker's device (default: 0)")
    add("--interval", type=float, default=1.0, help="seconds between scrapes (default: 1)")
    add("--seconds", type=float, default=2.0, help="of a window (default: %(default)g)")
    add("--pairs", type=int, default=30, help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
