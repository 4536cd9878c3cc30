from __future__ import annotations

import pytest

from deploy.loadtest.goodput import Limits
from deploy.loadtest.measures import measure
from tests.deploy.loadtest.timelines import timeline

# First token 50 ms, gaps 10 and 30, per token 20, end to end 91.
SERVED = measure(timeline((50, 1), (60, 1), (90, 1), end=91))


@pytest.mark.parametrize(
    ("at_the_limit", "below_it"),
    [
        ("ttft:50", "ttft:49.9"),
        ("tpot:20", "tpot:19.9"),
        ("gap:30", "gap:29"),
        ("e2e:91", "e2e:90"),
    ],
)
def test_a_request_at_a_limit_is_good_and_above_it_is_not(at_the_limit: str, below_it: str) -> None:
    assert Limits.parse([at_the_limit]).met_by(SERVED)
    assert not Limits.parse([below_it]).met_by(SERVED)


def test_every_limit_must_be_met() -> None:
    assert Limits.parse(["ttft:50", "tpot:20", "gap:30", "e2e:91"]).met_by(SERVED)
    assert not Limits.parse(["ttft:50", "tpot:20", "gap:30", "e2e:1"]).met_by(SERVED)


def test_a_shared_gap_at_the_limit_is_good_in_spite_of_float_seconds() -> None:
    shared = measure(timeline((50, 2), (110, 3), end=111))
    assert Limits.parse(["tpot:20", "gap:20"]).met_by(shared)


def test_one_token_has_no_time_per_token_to_pass_a_limit() -> None:
    assert Limits.parse(["tpot:1", "gap:1"]).met_by(measure(timeline((50, 1), end=51)))


@pytest.mark.parametrize("status", ["UNAVAILABLE", "UNFINISHED", "NOT_SENT"])
def test_without_a_good_end_no_request_is_good(status: str) -> None:
    ended_badly = measure(timeline((50, 1), (60, 1), end=91, status=status))
    assert not Limits.parse(["ttft:500"]).met_by(ended_badly)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["latency:5"], "'latency:5'.*one of ttft, tpot, gap, e2e"),
        (["ttft"], "'ttft'.*milliseconds above 0"),
        (["ttft:"], "'ttft:'.*milliseconds above 0"),
        (["ttft:0"], "'ttft:0'.*milliseconds above 0"),
        (["ttft:nan"], "'ttft:nan'.*milliseconds above 0"),
        (["ttft:inf"], "'ttft:inf'.*milliseconds above 0"),
        (["e2e:-1"], "'e2e:-1'.*milliseconds above 0"),
        (["ttft:1", "ttft:2"], "'ttft' is given twice"),
    ],
)
def test_a_limit_that_says_nothing_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits.parse(words)


def test_limits_read_as_they_were_given() -> None:
    assert str(Limits.parse(["e2e:2000", "ttft:500.5"])) == "ttft <= 500.5 ms, e2e <= 2000 ms"
    assert not Limits()
