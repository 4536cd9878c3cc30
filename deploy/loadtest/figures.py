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
    to_cancel: int  # of those, by the plan, whatever their outcome
    slow_readers: int  # the same
    failures: dict[str, int]  # by status, most frequent first

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        by_outcome = Counter(request.measures.outcome for request in requests)
        failed = (r.measures.status for r in requests if r.measures.outcome is Outcome.FAILED)
        return cls(
            counted=len(requests),
            **{outcome.value: by_outcome[outcome] for outcome in Outcome},
            to_cancel=sum(request.timeline.to_cancel for request in requests),
            slow_readers=sum(request.timeline.slow_reader for request in requests),
            failures=dict(Counter(failed).most_common()),
        )


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests within all limits. Failed and unfinished ones are not. The rate is of the
    window, as all rates are: of a warm-up it counts what ended inside."""

    limits: Limits
    judged: int
    good: int
    share: float | None  # good of judged
    per_second: float  # good ones that ended within the measuring window

    @classmethod
    def of(
        cls,
        counted: Sequence[Request],
        traffic: Sequence[Request],
        stages: Sequence[Stage],
        limits: Limits,
    ) -> Self:
        """Share of the requests `counted`, and rate of `traffic`."""
        judged = sum(request.judged for request in counted)
        good = len(_good(counted, limits))
        seconds = sum(stage.seconds for stage in stages)
        ends = [request.timeline.ended for request in _good(traffic, limits)]
        rate = count_inside(ends, stages) / seconds if seconds > 0 else 0.0
        return cls(limits, judged, good, good / judged if judged else None, rate)


def _good(requests: Sequence[Request], limits: Limits) -> list[Request]:
    return [r for r in requests if r.judged and limits.met_by(r.measures)]


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
            goodput=Goodput.of(counted, traffic, stages, limits) if limits else None,
        )
