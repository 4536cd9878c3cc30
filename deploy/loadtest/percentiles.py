"""The spread of a measure over requests or tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

METHOD = "linear interpolation: rank q * (n - 1) among the n sorted values, from 0"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of n samples, in the samples' unit; all None if there are none."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, samples: ArrayLike) -> Self:
        values = np.asarray(samples, np.float64)
        if not values.size:
            return cls(n=0)
        p50, p90, p99 = np.percentile(values, (50, 90, 99), method="linear")
        rest = (values.mean(), p50, p90, p99, values.max())
        return cls(values.size, *(float(value) for value in rest))
