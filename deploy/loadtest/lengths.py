"""Lengths of prompts and outputs, in tokens: fixed, or drawn from a distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from deploy.loadtest.limits import check

LONGEST = 10_000_000


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `tokens`."""

    tokens: int

    def __post_init__(self) -> None:
        _check("fixed", self.tokens)

    def draw(self, _rng: np.random.Generator) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Each of low to high, both included, alike."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check("uniform", self.low, self.high)
        if self.low > self.high:
            raise ValueError(f"uniform:{self.low}:{self.high}: the first must not be the larger")

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high + 1))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp(N(mu, sigma)), rounded and held within 1 to `most`; mu = ln(mean) - sigma^2 / 2
    makes `mean` the mean before that."""

    mean: float
    sigma: float
    most: int = LONGEST

    def __post_init__(self) -> None:
        _check("lognormal", self.mean, self.most)
        if not 0 <= self.sigma <= 10:
            raise ValueError(f"lognormal: sigma is {self.sigma:g}, must be 0 to 10")

    def draw(self, rng: np.random.Generator) -> int:
        drawn = rng.lognormal(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return int(min(max(1, round(drawn)), self.most))


Lengths = Fixed | Uniform | LogNormal


def parse_lengths(text: str) -> Lengths:
    """From "N", "fixed:N", "uniform:LOW:HIGH" or "lognormal:MEAN:SIGMA[:MAX]". Raises
    ValueError."""
    kind, *values = f"fixed:{text}".split(":") if text.isdecimal() else text.split(":")
    try:
        if kind == "fixed" and len(values) == 1:
            return Fixed(_whole(values[0]))
        if kind == "uniform" and len(values) == 2:
            return Uniform(_whole(values[0]), _whole(values[1]))
        if kind == "lognormal" and len(values) in (2, 3):
            return LogNormal(float(values[0]), float(values[1]), *map(_whole, values[2:]))
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    raise ValueError(
        f"{text!r} is none of N, fixed:N, uniform:LOW:HIGH and lognormal:MEAN:SIGMA[:MAX]"
    )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number of tokens") from None


def _check(kind: str, *values: float) -> None:
    for value in values:
        check(kind, value, 1, LONGEST, "tokens")
