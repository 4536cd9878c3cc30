"""Rates and the knee, on hand-made timelines."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.bench.batching.loads import LONG, SHORT, Mix, seven_behind_one
from deploy.bench.batching.throughput import BatchRate, Curve
from deploy.loadtest.timeline import Run, Stage, Timeline


def run_of(*streams: list[float]) -> Run:
    """Each stream's tokens come one at a time at those seconds, planned at second 1."""
    timelines = [
        Timeline(
            index=i,
            planned=1.0,
            sent=1.0,
            times=np.array(times),
            token_counts=np.ones(len(times), np.int32),
            has_text=np.zeros(len(times), bool),
            ended=times[-1],
            status="OK",
            prompt_tokens=1,
            output_tokens=len(times),
        )
        for i, times in enumerate(streams)
    ]
    return Run({}, "", (Stage(1.0, 9.0, None, None),), tuple(timelines))


def test_the_rate_counts_tokens_while_all_requests_run() -> None:
    run = run_of([2.0, 3.0, 4.0, 5.0, 6.0], [3.0, 4.0, 5.0])
    rate = BatchRate.of(run, 2, 1)
    # From second 3, when the last one began, to second 5: two tokens each.
    assert rate.decode == 2.0
    assert rate.step_seconds == 1.0
    assert rate.overall == 8 / 5.0


def test_requests_that_never_ran_together_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="of 2 requests the first ended before the last began"):
        BatchRate.of(run_of([2.0, 3.0], [3.0, 4.0]), 2, 1)


def curve(*rates: float) -> Curve:
    return Curve.of([BatchRate(2**i, 1, rate, rate) for i, rate in enumerate(rates)])


def test_medians_and_ranges_are_over_rounds() -> None:
    rates = [BatchRate(1, i, rate, rate / 2) for i, rate in enumerate((10.0, 30.0, 11.0))]
    of = Curve.of(rates)
    assert (of.decode, of.lowest, of.highest, of.overall) == ((11.0,), (10.0,), (30.0,), (5.5,))


def test_the_knee_is_the_last_size_with_half_of_the_ideal() -> None:
    of = curve(10, 20, 36, 44, 47)
    assert of.speed_up == (1.0, 2.0, 3.6, 4.4, 4.7)
    assert of.efficiency == pytest.approx((1.0, 1.0, 0.9, 0.55, 0.29375))
    assert of.knee == 8


def test_the_last_gain_is_the_size_after_which_the_next_adds_less_than_a_tenth() -> None:
    assert curve(10, 20, 36, 44, 47).last_gain == 8
    assert curve(10, 20, 36).last_gain == 4
    assert curve(10, 20, 36).knee == 4


def test_seven_short_requests_come_with_one_long() -> None:
    asked = seven_behind_one()
    assert [(a.time, a.output_len) for a in asked] == [(0.0, 32), *[(0.0, 4)] * 7]


def test_the_mix_is_always_the_same_and_a_quarter_is_long() -> None:
    asked = Mix(64).asked(4.0)
    assert asked == Mix(64).asked(4.0)
    groups = [a.group for a in asked]
    assert (groups.count(LONG), groups.count(SHORT)) == (16, 48)
    assert all(2 <= a.output_len <= 8 for a in asked if a.group == SHORT)
    assert all(32 <= a.output_len <= 96 for a in asked if a.group == LONG)
    assert max(a.prompt_len + a.output_len for a in asked) <= Mix(64).most_tokens == 160
    assert Mix(64).mean_output == 0.75 * 5 + 0.25 * 64


def test_a_mix_at_another_rate_has_the_same_requests_at_other_times() -> None:
    slow, quick = Mix(8).asked(2.0), Mix(8).asked(4.0)
    assert [a.output_len for a in slow] == [a.output_len for a in quick]
    assert [a.time for a in slow] == pytest.approx([2 * a.time for a in quick])
