from __future__ import annotations

import numpy as np
import pytest

from deploy.loadtest.percentiles import Distribution


def test_percentiles_lie_on_the_line_between_the_sorted_values() -> None:
    found = Distribution.of([40, 10, 20, 30])  # p50 at rank 1.5, p90 at 2.7, p99 at 2.97
    assert (found.n, found.mean, found.p50, found.max) == (4, 25, 25, 40)
    assert (found.p90, found.p99) == (pytest.approx(37), pytest.approx(39.7))


def test_of_a_hundred_and_one_values_each_percentile_is_one_of_them() -> None:
    found = Distribution.of(np.random.default_rng(0).permutation(101))
    assert found == Distribution(n=101, mean=50, p50=50, p90=90, p99=99, max=100)


def test_one_value_is_its_every_percentile() -> None:
    assert Distribution.of([7.5]) == Distribution(1, 7.5, 7.5, 7.5, 7.5, 7.5)


def test_without_samples_there_is_no_figure() -> None:
    assert Distribution.of([]) == Distribution(0, None, None, None, None, None)
