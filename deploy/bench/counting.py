"""`python -m deploy.bench.counting`: what metrics and logs cost, part by part.

CPU time of one thread, the least of many repetitions, which a busy machine disturbs little:
in the scheduler counting a step of so many rows, making the text of a scrape, and the line of a
request; in the worker the first two. Each is also told as a share of a second with 1,000 steps, a
scrape and 100 requests.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from nanoserve.v1 import worker_pb2
from scheduler.api.call_log import fields
from scheduler.api.call_record import CallRecord
from scheduler.api.metrics import SchedulerCollector
from scheduler.core.front_end import CallTotals, EngineStatus, Limits
from scheduler.core.statistics import Statistics
from scheduler.core.worker_link import StepAnswer, StepTimes
from scheduler.log_format import HumanFormatter, JsonFormatter
from worker.__main__ import parse
from worker.metrics import WorkerCollector
from worker.session import Session
from worker.start import make_executor

STEPS, SCRAPES, REQUESTS = 1000, 1, 100  # a second


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.counting",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=64, help="of a step (default: %(default)s)")
    rows = parser.parse_args(arguments).rows
    _tell(f"counting a step of {rows} rows", _least(_count_step(rows), 1000), STEPS)
    _tell(
        "making the text of a scrape", _least(_text_of(SchedulerCollector(_Source())), 5), SCRAPES
    )
    for name, formatter in (("human", HumanFormatter()), ("json", JsonFormatter())):
        _tell(f"a request's line, {name}", _least(_make_line(formatter), 200), REQUESTS)
    session = Session(make_executor(parse(["--simulate"])).geometry, check_slots=False)
    _tell("worker: counting a step", _least(_count_in_worker(session), 1000), STEPS)
    text = _least(_text_of(WorkerCollector(session)), 5)
    _tell("worker: making the text of a scrape", text, SCRAPES)
    return 0


def _tell(what: str, seconds: float, times: int) -> None:
    print(f"{what}: {1e6 * seconds:.1f} us; {times} a second: {100 * seconds * times:.2f} %")


def _least(work: Callable[[], object], number: int) -> float:
    """Seconds of this thread's CPU time for one call."""
    return min(timeit.repeat(work, timer=time.thread_time, number=number, repeat=50)) / number


def _count_step(rows: int) -> Callable[[], None]:
    statistics = Statistics()
    times = StepTimes(device=600_000, sample=50_000, total=900_000, round_trip=1_500_000, idle=1)
    answer = StepAnswer(1, np.zeros(rows, np.int32), None, times, 500, 300)
    gaps = np.full(rows, 0.001)

    def count() -> None:
        statistics.steps.answered([answer], rows, rows)
        statistics.requests.inter_token.observe_all(gaps)

    return count


def _count_in_worker(session: Session) -> Callable[[], None]:
    times = worker_pb2.StepTimes(queue=1, input=2, device=600_000, sample=50_000, total=9, idle=1)
    return lambda: session.statistics.durations.answered([times])


def _text_of(collector: Collector) -> Callable[[], bytes]:
    registry = CollectorRegistry()
    registry.register(collector)
    return lambda: generate_latest(registry)


def _make_line(formatter: logging.Formatter) -> Callable[[], str]:
    ended = CallRecord("r1", "stop", "OK", 5, 4, 0.75, 0.25, 0.5, 0.7, 0.066, 1, 11)

    def line() -> str:
        record = logging.LogRecord("name", logging.INFO, "", 1, "request ended", (), None)
        record.fields = fields(ended)
        return formatter.format(record)

    return line


@dataclass(frozen=True)
class _Source:
    """An engine's records without an engine."""

    statistics: Statistics = field(default_factory=Statistics)
    calls: CallTotals = field(default_factory=CallTotals)

    def status(self) -> EngineStatus:
        return EngineStatus(
            ready=True,
            reason="",
            limits=Limits(8192, 32000, 64, 16, 2048),
            worker_incarnation=7,
            worker_device="simulated",
            running=64,
            waiting=1,
            free_blocks=2,
            steps_in_flight=3,
            steps=4,
            prompt_tokens=5,
            output_tokens=6,
            discarded_tokens=8,
            preemptions=9,
            recomputed_tokens=10,
            worker_restarts=11,
            loop_turned_at=time.monotonic(),
        )


if __name__ == "__main__":
    sys.exit(main())
