from __future__ import annotations

import pytest

from scheduler.core.breaker import COOLDOWN_SECONDS, LOSSES, WINDOW_SECONDS, Breaker
from scheduler.core.front_end import Failure, FailureKind
from scheduler.core.worker_link import Disconnected
from tests.scheduler.core.fake_worker import expected_tokens
from tests.scheduler.core.harness import Harness


def crash(harness: Harness, times: int, *, said: bool = False) -> None:
    for _ in range(times):
        harness.turn()
        if said:
            harness.engine.post(Disconnected("a step failed", step_failed=True))
        harness.worker.restart()
        harness.turn()


def test_the_breaker_opens_at_the_last_of_the_losses_in_a_row() -> None:
    breaker = Breaker()
    assert [breaker.lost(float(now)) for now in range(LOSSES)] == [False] * (LOSSES - 1) + [True]
    opened = LOSSES - 1.0
    assert f"crashed {LOSSES} times in a row" in breaker.reason(opened)
    assert breaker.reason(opened + COOLDOWN_SECONDS - 0.1)
    assert breaker.reason(opened + COOLDOWN_SECONDS) == ""


def test_progress_and_time_make_the_losses_forgotten() -> None:
    breaker = Breaker()
    for now in range(LOSSES - 1):
        breaker.lost(float(now))
    breaker.progressed()
    assert not any(breaker.lost(10.0 + now) for now in range(LOSSES - 1))
    assert not breaker.lost(10.0 + LOSSES + WINDOW_SECONDS + 1)


def test_a_loss_after_the_cooldown_opens_it_for_twice_as_long() -> None:
    breaker = Breaker()
    for _ in range(LOSSES):
        breaker.lost(0.0)
    now = COOLDOWN_SECONDS
    assert breaker.reason(now) == ""
    assert breaker.lost(now)
    assert breaker.reason(now + 2 * COOLDOWN_SECONDS - 0.1)
    assert breaker.reason(now + 2 * COOLDOWN_SECONDS) == ""


@pytest.mark.parametrize(("said", "blamed"), [(True, 3), (False, 0)])
def test_a_crash_loop_ends_requests_turns_new_ones_away_and_says_so(
    said: bool, blamed: int
) -> None:
    """After two crashes the suspects run alone. One that is alone when a step is said to fail is
    blamed; without a word another one is tried next, so that the loop shows first."""
    harness = Harness()
    handles = [harness.submit([i, i], 5) for i in range(40)]
    crash(harness, LOSSES, said=said)
    assert not harness.engine.status().ready
    assert "crashed 5 times in a row" in harness.engine.status().reason
    ends = [harness.front_end.ends[handle] for handle in handles]
    kinds = [end.kind for end in ends if isinstance(end, Failure)]
    assert kinds == [FailureKind.INTERNAL] * blamed + [FailureKind.UNAVAILABLE] * (40 - blamed)
    late = harness.submit([1], 2)
    harness.turn()
    end = harness.front_end.ends[late]
    assert isinstance(end, Failure)
    assert end.kind is FailureKind.UNAVAILABLE
    assert "crashed 5 times in a row" in end.message
    harness.now += COOLDOWN_SECONDS
    harness.turn()
    assert harness.engine.status().ready
    again = harness.submit([1], 2)
    harness.run()
    assert not isinstance(harness.front_end.ends[again], Failure)


def test_a_worker_that_is_lost_over_and_over_while_idle_opens_it_too() -> None:
    harness = Harness()
    crash(harness, LOSSES)
    assert not harness.engine.status().ready


def test_one_request_that_crashes_the_worker_without_a_word_does_not_open_it() -> None:
    """Of six losses in a row the two between the first alone and the last say nothing more of
    the worker, and whoever came meanwhile is served."""
    harness = Harness(pipeline_depth=1)
    poison = harness.submit([1, 1], 5)
    crash(harness, 2)
    late = harness.submit([2, 2], 5)
    crash(harness, 4)
    assert "ended 6 times in a row" in harness.front_end.ends[poison].message
    assert harness.engine.status().ready
    harness.run()
    assert harness.front_end.tokens[late] == expected_tokens([2, 2], 5)


def test_a_worker_that_crashes_whoever_runs_opens_it_though_it_is_one_request_at_a_time() -> None:
    harness = Harness(pipeline_depth=1)
    harness.submit([1, 1], 5)
    crash(harness, 6)
    other = harness.submit([2, 2], 5)
    crash(harness, 1)
    assert "in a row" in harness.engine.status().reason
    assert harness.front_end.ends[other].kind is FailureKind.UNAVAILABLE
