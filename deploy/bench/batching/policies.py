"""The policies that are compared, under one load, and the bill of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from deploy.bench.batching.history import Occupancy, Work, work_of
from deploy.bench.batching.loads import Asked, late, run_asked
from deploy.bench.batching.recording import Recording
from deploy.bench.batching.servers import SCHEDULER, RecordedWorker
from deploy.loadtest.timeline import Run, Timeline

ROWS = 8


class Policy(StrEnum):
    CONTINUOUS = "continuous"
    STATIC = "static"
    STATIC_TOGETHER = "static, ends held back"

    def flags(self, wait: float) -> tuple[str, ...]:
        """Of the scheduler. `wait`: seconds that a static batch which is not full waits."""
        if self is Policy.CONTINUOUS:
            return ()
        batch = ("--static-batch", str(ROWS), "--static-wait", f"{wait:.4f}")
        returns = "batch" if self is Policy.STATIC_TOGETHER else "each"
        return ("--policy", "static", *batch, "--static-return", returns)


@dataclass(frozen=True, slots=True)
class Served:
    """One request and what was computed for it. Seconds."""

    asked: Asked
    timeline: Timeline
    work: Work

    @property
    def first_token(self) -> float:
        return float(self.timeline.times[0]) - self.timeline.planned

    @property
    def latency(self) -> float:
        """From its arrival to its end, as the client sees them."""
        return self.timeline.ended - self.timeline.planned

    @property
    def over_own_work(self) -> float:
        """Latency by the time of the steps that made its tokens."""
        return self.latency / self.work.own_seconds


@dataclass(frozen=True)
class Bill:
    """A load under a policy."""

    load: str
    policy: Policy
    round: int
    recording: Recording
    requests: tuple[Served, ...]
    void: str | None  # why the run does not count

    @property
    def pool(self) -> int:
        """Blocks that requests can hold."""
        return self.recording.num_blocks - 1

    @property
    def issued(self) -> int:
        """Tokens sampled."""
        return sum(served.work.issued for served in self.requests)

    @property
    def useful(self) -> int:
        return sum(served.work.useful for served in self.requests)

    @property
    def wasted(self) -> float:
        """Share of the tokens sampled that nobody had asked for."""
        return 1 - self.useful / self.issued

    @property
    def dead(self) -> float:
        """Share of the rows' time in which they computed for nobody."""
        dead = sum(served.work.dead_seconds for served in self.requests)
        return dead / (dead + sum(served.work.own_seconds for served in self.requests))

    @property
    def seconds(self) -> float:
        """From the first arrival to the last end."""
        return max(s.timeline.ended for s in self.requests) - min(
            s.timeline.planned for s in self.requests
        )

    @property
    def preemptions(self) -> int:
        return sum(served.work.admissions - 1 for served in self.requests)

    @property
    def recomputed(self) -> int:
        """Tokens computed again after preemptions."""
        computed = sum(sum(step.query_lens) for step in self.recording.steps)
        # The last token of each is sampled and never computed; a wasted one costs one query.
        needed = sum(s.asked.prompt_len + s.work.useful - 1 for s in self.requests)
        return computed - needed - (self.issued - self.useful)

    @cached_property
    def occupancy(self) -> Occupancy:
        return Occupancy.of(self.recording)

    def latencies(self, group: str) -> np.ndarray:
        """Seconds, float64 [requests of the group]."""
        return np.array([s.latency for s in self.requests if s.asked.group == group])

    def over_own_work(self, group: str) -> np.ndarray:
        return np.array([s.over_own_work for s in self.requests if s.asked.group == group])


def bill(
    worker: RecordedWorker,
    load: str,
    asked: Sequence[Asked],
    policy: Policy,
    wait: float,
    number: int,
) -> Bill:
    """Runs the load, the `number`th time. Raises RuntimeError if a request or a server fails."""
    recordings: list[Recording] = []
    with worker.recorded_scheduler((*SCHEDULER, *policy.flags(wait)), recordings) as address:
        run = run_asked(address, asked, seed=number)
    (recording,) = recordings
    works = work_of(recording, _output_lens(run))
    requests = (
        Served(a, timeline, works[timeline.request_id])
        for a, timeline in zip(asked, run.timelines, strict=True)
    )
    return Bill(load, policy, number, recording, tuple(requests), late(run))


def _output_lens(run: Run) -> dict[str, int]:
    return {t.request_id: int(t.token_counts.sum()) for t in run.timelines}
