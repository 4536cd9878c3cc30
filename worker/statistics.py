"""What a worker measures, as plain records; metrics are made of them at the edge only
(worker/metrics.py)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from nanoserve.v1 import worker_pb2
from worker.histogram import Histogram

# Seconds; the scheduler counts its steps in the same ranges.
STEP_BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01),
    *(0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)


class StepDurations:
    """How long the answered steps took, in seconds, by the names of StepTimes in worker.proto.

    The repetitions of a step count as one: what the device did in them is added up. Any thread
    may add, and any may read a copy.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._histograms = {
            name: Histogram(STEP_BOUNDS)
            for name in ("queue", "input", "device", "sample", "total", "idle")
        }

    def answered(self, times: Sequence[worker_pb2.StepTimes]) -> None:
        """A step of which these are the times of its repetitions, in order."""
        first, last = times[0], times[-1]
        spent = {
            "queue": first.queue,
            "input": first.input,
            "device": sum(one.device for one in times),
            "sample": sum(one.sample for one in times),
            "total": last.total,
        }
        if first.HasField("idle"):
            spent["idle"] = sum(one.idle for one in times)
        with self._lock:
            for name, nanoseconds in spent.items():
                self._histograms[name].observe(nanoseconds / 1e9)

    def copy(self) -> dict[str, Histogram]:
        with self._lock:
            return {name: histogram.copy() for name, histogram in self._histograms.items()}


@dataclass(slots=True)
class Statistics:
    """Totals from the start of the process on. The session changes them under its lock."""

    load_seconds: float | None = None  # weights, pool and warm-up; None while they go on
    steps: int = 0  # run
    tokens_computed: int = 0
    tokens_sampled: int = 0
    refused_steps: Counter[worker_pb2.RefusalReason] = field(default_factory=Counter)
    connects: int = 0  # that were not refused
    resets: int = 0
    incarnations: int = 0
    durations: StepDurations = field(default_factory=StepDurations)
