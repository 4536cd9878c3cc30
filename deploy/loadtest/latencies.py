"""How long requests took: the samples of each latency, and their spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from deploy.loadtest.percentiles import Distribution
from deploy.loadtest.requests import Request

# What users of the tables and plots read, in the order of a request's life.
TITLES = {
    "first_token": "to first token",
    "first_text": "to first text",
    "per_token": "per output token",
    "gap": "gap before a token",
    "end_to_end": "end to end",
}


def latency_samples(requests: Sequence[Request]) -> dict[str, NDArray[np.float64]]:
    """Seconds, by the names of TITLES, of the judged requests that give a sample: end to
    end only those that ended well, the others whatever their end. Gaps have a sample for
    each token, the others one for each request."""
    judged = [request.measures for request in requests if request.judged]
    gaps = [measures.gaps for measures in judged]
    single = {
        name: np.array([v for m in judged if (v := getattr(m, name)) is not None], np.float64)
        for name in TITLES
        if name != "gap"
    }
    return single | {"gap": np.concatenate(gaps) if gaps else np.zeros(0)}


@dataclass(frozen=True, slots=True)
class Latencies:
    """The spread of each latency's samples, in seconds."""

    first_token: Distribution
    first_text: Distribution
    per_token: Distribution
    gap: Distribution
    end_to_end: Distribution

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        samples = latency_samples(requests)
        return cls(**{name: Distribution.of(values) for name, values in samples.items()})


@dataclass(frozen=True, slots=True)
class Unanswered:
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
