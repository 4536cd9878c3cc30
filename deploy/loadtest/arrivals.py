"""When requests arrive: by a schedule (open loop) or when others have ended (closed)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deploy.loadtest.limits import check

HIGHEST_RATE = 100_000.0
MOST_USERS = 100_000
MOST_STAGES = 24


@dataclass(frozen=True, slots=True)
class Open:
    """At `rate` arrivals a second whatever the server does. Gaps are gamma distributed
    with the coefficient of variation `cv`: 1 is a Poisson process, 0 a constant rate,
    more comes in bursts."""

    rate: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        check("rate", self.rate, 1e-3, HIGHEST_RATE, "arrivals a second")
        check("cv", self.cv, 0.0, 20.0)

    def times(self, seed: np.random.SeedSequence, most: int, until: float) -> NDArray[np.float64]:
        """Seconds from the start, rising: at most `most`, all less than `until`."""
        rng = np.random.default_rng(seed)
        if self.cv == 0:
            count = min(most, math.ceil(until * self.rate) if until < math.inf else most)
            times = np.arange(count) / self.rate
            return times[times < until]
        shape = self.cv**-2
        parts: list[NDArray[np.float64]] = []
        last, count = 0.0, 0
        while count < most and last < until:
            gaps = rng.gamma(shape, 1 / (shape * self.rate), min(4096, most - count))
            parts.append(last + np.cumsum(gaps))
            last, count = float(parts[-1][-1]), count + len(gaps)
        times = np.concatenate(parts) if parts else np.zeros(0)
        return times[times < until]


@dataclass(frozen=True, slots=True)
class Burst:
    """All at once."""


@dataclass(frozen=True, slots=True)
class Closed:
    """`users` that each send the next request when their last one has ended."""

    users: int

    def __post_init__(self) -> None:
        check("concurrency", self.users, 1, MOST_USERS, "requests")


@dataclass(frozen=True, slots=True)
class Ramp:
    """Open stages of `stage_seconds`, each `factor` times the rate of the one before,
    until one does not hold; then the knee is bisected (ramp.py has the rule)."""

    first: float
    factor: float = 2.0
    stage_seconds: float = 20.0
    cv: float = 1.0
    bisections: int = 3

    def __post_init__(self) -> None:
        check("ramp", self.first, 1e-3, HIGHEST_RATE, "arrivals a second")
        check("ramp-factor", self.factor, 1.1, 10.0)
        check("stage-seconds", self.stage_seconds, 0.1, 3600.0, "seconds")
        check("cv", self.cv, 0.0, 20.0)
        check("bisections", self.bisections, 0, 10)


@dataclass(frozen=True, slots=True)
class Replay:
    """At the times of a trace, `speed` times as fast."""

    speed: float = 1.0

    def __post_init__(self) -> None:
        check("speed", self.speed, 1e-3, 1e3)


Arrivals = Open | Burst | Closed | Ramp | Replay
