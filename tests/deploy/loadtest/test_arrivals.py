"""When requests arrive."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deploy.loadtest.arrivals import Closed, Open, Ramp, Replay

SEED = np.random.SeedSequence(5)


def test_a_constant_rate_has_equal_gaps_from_the_start_on() -> None:
    assert Open(4, cv=0).times(SEED, 5, math.inf).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert Open(4, cv=0).times(SEED, 99, 1.0).tolist() == [0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_mean_of_the_rate_and_the_variation_asked_for(cv: float) -> None:
    times = Open(50, cv).times(SEED, 20_000, math.inf)
    gaps = np.diff(times, prepend=0)
    assert len(times) == 20_000
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_gaps_of_variation_one_are_exponential() -> None:
    gaps = np.diff(Open(10, 1.0).times(SEED, 20_000, math.inf), prepend=0)
    for quantile in (0.1, 0.5, 0.9):
        expected = -math.log(1 - quantile) / 10
        assert np.quantile(gaps, quantile) == pytest.approx(expected, rel=0.05)


def test_no_arrival_is_at_or_after_the_end() -> None:
    times = Open(100).times(SEED, 10_000, 5.0)
    assert 400 < len(times) < 600
    assert times[-1] < 5.0
    longer = Open(100).times(SEED, 10_000, 6.0)
    assert longer[: len(times)].tolist() == times.tolist()
    assert longer[len(times)] >= 5.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Open(0), "rate is 0, must be 0.001 to 100000 arrivals a second"),
        (lambda: Open(math.nan), "rate is nan"),
        (lambda: Open(1, -1), "cv is -1, must be 0 to 20"),
        (lambda: Closed(0), "concurrency is 0, must be 1 to 100000 requests"),
        (lambda: Ramp(1, factor=1), "ramp-factor is 1, must be 1.1 to 10"),
        (lambda: Ramp(1, stage_seconds=0), "stage-seconds is 0, must be 0.1 to 3600 seconds"),
        (lambda: Replay(0), "speed is 0, must be 0.001 to 1000"),
    ],
)
def test_what_cannot_be_is_refused_with_name_value_and_limit(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make()  # type: ignore[operator]
