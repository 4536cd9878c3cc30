"""Lengths of prompts and outputs: how they are written, drawn and refused."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.loadtest.lengths import Fixed, LogNormal, Uniform, parse_lengths


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("7", Fixed(7)),
        ("fixed:7", Fixed(7)),
        ("uniform:3:9", Uniform(3, 9)),
        ("lognormal:200:0.5", LogNormal(200.0, 0.5)),
        ("lognormal:200:0.5:300", LogNormal(200.0, 0.5, 300)),
    ],
)
def test_lengths_are_read_as_written(text: str, lengths: object) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is none of N, fixed:N"),
        ("normal:3", "is none of N, fixed:N"),
        ("uniform:3", "is none of N, fixed:N"),
        ("fixed:x", "'x' is not a whole number"),
        ("fixed:1.5", "'1.5' is not a whole number"),
        ("0", "fixed is 0, must be 1 to 1e+07 tokens"),
        ("uniform:9:3", "the first must not be the larger"),
        ("lognormal:nan:1", "lognormal is nan, must be 1 to"),
        ("lognormal:5:11", "sigma is 11, must be 0 to 10"),
    ],
)
def test_what_is_no_length_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        parse_lengths(text)
    assert message in str(refused.value)


def test_uniform_lengths_take_each_value_alike_both_ends_included() -> None:
    rng = np.random.default_rng(0)
    drawn = [Uniform(3, 6).draw(rng) for _ in range(4000)]
    counts = np.bincount(drawn)
    assert len(counts) == 7
    assert (counts[:3] == 0).all()
    assert (np.abs(counts[3:] - 1000) < 120).all()


def test_the_mean_of_lognormal_lengths_is_the_one_given() -> None:
    rng = np.random.default_rng(0)
    drawn = [LogNormal(200, 0.5).draw(rng) for _ in range(4000)]
    assert abs(np.mean(drawn) - 200) < 5
    assert abs(np.std(np.log(drawn)) - 0.5) < 0.02


def test_lognormal_lengths_stay_between_one_and_the_most() -> None:
    rng = np.random.default_rng(0)
    drawn = [LogNormal(4, 3, 9).draw(rng) for _ in range(1000)]
    assert min(drawn) == 1
    assert max(drawn) == 9
