"""Counts of values by range, as plain numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise


class Histogram:
    """How many observed values lie at or below each bound, and their sum. Not thread-safe."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` rise; values above the last are counted too. Raises ValueError if they do
        not rise."""
        if not bounds or any(high <= low for low, high in pairwise(bounds)):
            raise ValueError(f"histogram bounds must rise, and one at least: {list(bounds)}")
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def copy(self) -> Histogram:
        result = Histogram(self.bounds)
        result.counts, result.sum = self.counts.copy(), self.sum
        return result
