"""How sure a median is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of the median, from 10,000 resamples."""
    picks = np.random.default_rng(0).choice(values, (10_000, len(values)))
    low, high = np.percentile(np.median(picks, axis=1), [2.5, 97.5])
    return float(low), float(high)
