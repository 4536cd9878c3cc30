"""Counts of values by range, as plain numbers."""

from __future__ import annotations

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
        self.counts = np.zeros(len(bounds) + 1, np.int64)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[self.bounds.searchsorted(value)] += 1
        self.sum += value

    def observe_all(self, values: np.ndarray) -> None:
        """Shape: [n], n may be 0."""
        np.add.at(self.counts, self.bounds.searchsorted(values), 1)
        self.sum += float(values.sum())

    @property
    def count(self) -> int:
        return int(self.counts.sum())
