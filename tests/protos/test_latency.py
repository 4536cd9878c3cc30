"""Latencies from counts by range."""

from __future__ import annotations

import pytest

from nanoserve import LatencyHistogram

BOUNDS = (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ((10, 0, 0, 0), 0.5, 0.5),
        ((10, 0, 0, 0), 1.0, 1.0),
        ((0, 4, 0, 0), 0.25, 1.25),
        ((2, 0, 2, 0), 0.5, 1.0),
        ((2, 0, 2, 0), 0.75, 3.0),
        ((1, 1, 1, 1), 0.99, 4.0),
        ((0, 0, 0, 7), 0.5, 4.0),
        ((0, 0, 2, 0), 0.0, 2.0),
    ],
)
def test_percentiles_lie_evenly_within_a_range(
    counts: tuple[int, ...], share: float, seconds: float
) -> None:
    assert LatencyHistogram(BOUNDS, counts, 0.0).percentile(share) == pytest.approx(seconds)


def test_of_nothing_there_is_no_figure() -> None:
    none = LatencyHistogram(BOUNDS, (0, 0, 0, 0), 0.0)
    assert (none.count, none.mean, none.percentile(0.5)) == (0, None, None)


def test_what_came_between_two_statuses_is_their_difference() -> None:
    early = LatencyHistogram(BOUNDS, (3, 1, 0, 0), 4.0)
    late = LatencyHistogram(BOUNDS, (3, 3, 0, 1), 14.0)
    between = late.since(early)
    assert between == LatencyHistogram(BOUNDS, (0, 2, 0, 1), 10.0)
    assert between.count == 3
    assert between.mean == pytest.approx(10 / 3)


def test_histograms_of_different_ranges_are_not_subtracted() -> None:
    with pytest.raises(ValueError, match="different bounds"):
        LatencyHistogram((1.0,), (0, 0), 0.0).since(LatencyHistogram((2.0,), (0, 0), 0.0))


@pytest.mark.parametrize("share", [-0.1, 1.1, 50, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="0 <= share <= 1"):
        LatencyHistogram(BOUNDS, (1, 0, 0, 0), 0.5).percentile(share)
