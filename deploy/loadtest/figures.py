"""The figures of a set of requests: a whole run, a stage of it, or a part of its mix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from deploy.loadtest.goodput import Limits
from deploy.loadtest.measures import Outcome
from deploy.loadtest.percentiles import Distribution
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
class Latencies:
    """Seconds, over the judged requests that give a sample: end to end only those that
    ended well, the others whatever their end. Gaps have a sample for each token."""

    first_token: Distribution
    first_text: Distribution
    per_token: Distribution
    gap: Distribution
    end_to_end: Distribution

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        judged = [request.measures for request in requests if request.judged]
        gaps = [measures.gaps for measures in judged]
        single = {
            name: [v for measures in judged if (v := getattr(measures, name)) is not None]
            for name in ("first_token", "first_text", "per_token", "end_to_end")
        }
        spread = {name: Distribution.of(values) for name, values in single.items()}
        return cls(gap=Distribution.of(np.concatenate(gaps) if gaps else ()), **spread)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Requests that had no first token when the run ended. They give no sample, which
    makes an overloaded server look better than it is: the p99 says what it is at least,
    with their age at the end for the time that they would have needed."""

    requests: int
    first_token_p99_at_least: float | None  # seconds, over samples and ages

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        judged = [request for request in requests if request.judged]
        ages = [r.timeline.ended - r.timeline.planned for r in judged if r.awaits_first_token]
        samples = [s for r in judged if (s := r.measures.first_token) is not None]
        return cls(len(ages), Distribution.of(samples + ages).p99)


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
    waiting: Waiting
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
            waiting=Waiting.of(counted),
            per_second=Rates.of(traffic, stages),
            goodput=Goodput.of(counted, stages, limits) if limits else None,
        )
