"""Counts of values by range, as plain numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np


class Histogram:
    """How many observed values lie at or below each bound, and their sum.

    Written by one thread and read by others without a lock: a reader may see a sum that is an
    observation older or younger than the counts.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` rise; values above the last are counted too. Raises ValueError if they do
        not rise."""
        self.bounds = np.array(bounds, np.float64)
        if not len(bounds) or (np.diff(self.bounds) <= 0).any():
            raise ValueError(f"histogram bounds must rise, and one at least: {list(bounds)}")
        self.sum = 0.0
        # Two kinds of counts, as a list is faster for one value and an array for many.
        self._bounds = self.bounds.tolist()
        self._ones = [0] * (len(bounds) + 1)
        self._many = np.zeros(len(bounds) + 1, np.int64)

    def observe(self, value: float) -> None:
        self._ones[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: np.ndarray) -> None:
        """Shape: [n], n may be 0."""
        np.add.at(self._many, self.bounds.searchsorted(values), 1)
        self.sum += float(values.sum())

    @property
    def counts(self) -> np.ndarray:
        """int64 [number of bounds + 1]: up to each bound and above the one before; the last
        above all. A copy."""
        return self._many + self._ones

    @property
    def count(self) -> int:
        return int(self.counts.sum())
