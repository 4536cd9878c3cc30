import numpy as np
import pytest

from scheduler.core.histogram import Histogram


def test_a_value_counts_in_the_first_range_whose_bound_it_does_not_pass() -> None:
    histogram = Histogram([1.0, 2.0, 5.0])
    for value in (0.5, 1.0, 1.5, 5.0, 7.0):
        histogram.observe(value)
    assert histogram.counts.tolist() == [2, 1, 1, 1]
    assert (histogram.count, histogram.sum) == (5, 15.0)


def test_many_values_at_once_count_like_one_by_one() -> None:
    values = np.random.default_rng(0).exponential(1.0, 1000)
    bounds = [0.1, 0.5, 1.0, 3.0]
    at_once, one_by_one = Histogram(bounds), Histogram(bounds)
    at_once.observe_all(values)
    at_once.observe_all(values[:0])
    for value in values:
        one_by_one.observe(value)
    assert at_once.counts.tolist() == one_by_one.counts.tolist()
    assert at_once.sum == pytest.approx(one_by_one.sum)


@pytest.mark.parametrize("bounds", [[], [1.0, 1.0], [2.0, 1.0]])
def test_bounds_that_do_not_rise_are_refused(bounds: list[float]) -> None:
    with pytest.raises(ValueError, match="must rise"):
        Histogram(bounds)
