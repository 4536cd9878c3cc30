"""`python -m deploy.bench.overload`: what a server under too much load still serves in time.

A simulated worker of fixed speed; its capacity is what users that never pause get from it with
every row busy. Then requests come at that rate, and at `--times` as many, for `--seconds` each.
Goodput is the rate of requests that got their first token and their tokens within the limits.
The scheduler's memory is read before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from deploy.bench.machine import machine
from deploy.loadtest.arrivals import Arrivals, Closed, Open
from deploy.loadtest.goodput import Limits
from deploy.loadtest.lengths import Uniform
from deploy.loadtest.plan import Content, LoadPlan, Nanoserve
from deploy.loadtest.run import run_load
from deploy.loadtest.summary import Summary
from deploy.local.progress import Progress
from deploy.local.servers import Servers, ServerSettings
from deploy.local.stop_signals import Unasked

ROWS = 32
STEP_MS = 10.0
QUEUE_WAIT = 1.0  # seconds
# Milliseconds: the wait, and twice the step.
LIMITS = Limits(ttft=2000 * QUEUE_WAIT, tpot=3 * STEP_MS)
_CONTENT = Content(prompt=Uniform(16, 128), output=Uniform(32, 128))


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    progress = Progress("bench-overload")
    with _server(progress) as servers:
        address = servers.address
        progress.show("capacity")
        capacity = _load(address, Closed(ROWS), args.seconds / 2, 0).whole.per_second.requests
        runs: dict[str, Summary] = {}
        memory = [_scheduler_memory(servers)]
        for times in (1.0, args.times):
            progress.show(f"{times:g} times {capacity:.1f} requests/s")
            runs[f"{times:g}"] = _load(address, Open(times * capacity), args.seconds, 1)
            memory.append(_scheduler_memory(servers))
    progress.end(f"took {progress.seconds:.0f} s")
    print(_table(capacity, runs, memory))
    if args.json:
        found = {name: run.to_json() for name, run in runs.items()}
        about = {"capacity": capacity, "memory": memory, "machine": machine()}
        args.json.write_text(json.dumps(about | found, indent=1) + "\n")
    return 0


@contextmanager
def _server(progress: Progress) -> Iterator[Servers]:
    worker = ("--step-ms", str(STEP_MS), "--max-rows", str(ROWS), "--metrics-listen", "off")
    wait = ("--max-queue-wait", str(QUEUE_WAIT))
    scheduler = ("--no-tokenizer", "--no-prefix-cache", *wait, "--metrics-listen", "off")
    settings = ServerSettings(
        model=None,
        listen=None,
        simulate=True,
        worker_args=worker,
        scheduler_args=scheduler,
        echo=False,
        stop_patience=40.0,
    )
    with Servers(settings, Unasked()) as servers:
        servers.wait_until_ready(60, progress.show)
        yield servers


def _load(address: str, arrivals: Arrivals, seconds: float, seed: int) -> Summary:
    plan = LoadPlan(
        target=Nanoserve(address),
        arrivals=arrivals,
        content=_CONTENT,
        seconds=seconds,
        warm_up_seconds=seconds / 6,
        seed=seed,
        realtime=os.geteuid() == 0,  # else a busy machine voids the run
    )
    return Summary.of(run_load(plan), LIMITS)


def _scheduler_memory(servers: Servers) -> int:
    """Resident bytes."""
    return int(psutil.Process(servers.child("scheduler").pid).memory_info().rss)


def _table(capacity: float, runs: dict[str, Summary], memory: list[int]) -> str:
    lines = [
        f"capacity {capacity:.1f} requests/s; limits: first token {LIMITS.ttft:g} ms, "
        f"{LIMITS.tpot:g} ms per token",
        "load   offered/s  goodput/s  first token p50, p99 ms  refused  lag p99 ms",
    ]
    good = []
    for name, run in runs.items():
        figures = run.whole
        first, goodput = figures.latency_seconds.first_token, figures.goodput
        good.append(goodput.per_second if goodput else 0.0)
        refused = figures.requests.failures.get("RESOURCE_EXHAUSTED", 0)
        lines.append(
            f"{name:>4}  {figures.per_second.offered_requests:>10.1f}  {good[-1]:>9.1f}  "
            f"{_ms(first.p50):>14}, {_ms(first.p99):>7}  {refused:>7}  "
            f"{_ms(run.lag.seconds.p99):>10}"
        )
        if run.lag.void_reason:
            lines.append(f"      VOID: {run.lag.void_reason}")
    lines.append(f"goodput under overload over that at capacity: {good[-1] / good[0]:.2f}")
    lines.append("scheduler's memory, MiB: " + ", ".join(f"{m / 2**20:.0f}" for m in memory))
    return "\n".join(lines)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.overload", description=__doc__)
    parser.add_argument("--times", type=float, default=3.0, help="overload (default: 3)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load (default: 60)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
