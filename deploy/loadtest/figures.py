"""The figures of a set of requests: a whole run, a stage of it, or a part of its mix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from deploy.loadtest.goodput import Limits
from deploy.loadtest.latencies import Latencies, Unanswered
from deploy.loadtest.measures import Outcome
from deploy.loadtest.rates import Rates, count_inside
from deploy.loadtest.requests import Request
from deploy.loadtest.timeline import Stage


@dataclass(frozen=True, slots=True)
class Counts:
    """Of requests. ok, failed, unfinished and cancelled add up to counted."""

    counted: int
    ok: int
    failed: int
    unfinished: int
    cancelled: int
    slow_readers: int  # of those, whatever their outcome
    failures: dict[str, int]  # by status, most frequent first

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        by_outcome = Counter(request.measures.outcome for request in requests)
        failed = (r.measures.status for r in requests if r.measures.outcome is Outcome.FAILED)
        return cls(
            counted=len(requests),
            **{outcome.value: by_outcome[outcome] for outcome in Outcome},
            slow_readers=sum(request.timeline.slow_reader for request in requests),
            failures=dict(Counter(failed).most_common()),
        )


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests within all limits. Failed and unfinished ones are not."""

    limits: Limits
    judged: int
    good: int
    share: float | None  # good of judged
    per_second: float  # good ones that ended within the measuring window

    @classmethod
    def of(cls, requests: Sequence[Request], stages: Sequence[Stage], limits: Limits) -> Self:
        judged = [request for request in requests if request.judged]
        good = [request for request in judged if limits.met_by(request.measures)]
        seconds = sum(stage.seconds for stage in stages)
        ended = count_inside([request.timeline.ended for request in good], stages)
        share = len(good) / len(judged) if judged else None
        return cls(limits, len(judged), len(good), share, ended / seconds if seconds > 0 else 0.0)


@dataclass(frozen=True, slots=True)
class Figures:
    """All of them."""

    requests: Counts
    latency_seconds: Latencies
    unanswered: Unanswered
    per_second: Rates
    goodput: Goodput | None  # None without limits

    @classmethod
    def of(
        cls,
        counted: Sequence[Request],
        traffic: Sequence[Request],
        stages: Sequence[Stage],
        limits: Limits,
    ) -> Self:
        """Counts and latencies of the requests `counted`, and the rates at which
        `traffic` was served during `stages`."""
        return cls(
            requests=Counts.of(counted),
            latency_seconds=Latencies.of(counted),
            unanswered=Unanswered.of(counted),
            per_second=Rates.of(traffic, stages),
            goodput=Goodput.of(counted, stages, limits) if limits else None,
        )
