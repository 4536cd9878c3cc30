"""A worker that is away, or that does not answer."""

from __future__ import annotations

import pytest

from scheduler.core.config import EngineConfig
from scheduler.core.front_end import Failure, FailureKind
from scheduler.core.worker_link import Disconnected
from tests.scheduler.core.fake_worker import expected_tokens
from tests.scheduler.core.harness import Harness


def test_requests_wait_for_a_worker_that_is_away_and_end_after_the_recovery_timeout() -> None:
    harness = Harness(recovery_timeout=300)
    running = harness.submit([1, 2], 9)
    harness.turn()
    harness.engine.post(Disconnected("killed"))
    harness.turn()
    queued = harness.submit([3], 2)
    harness.now = 299.0
    harness.engine.post(Disconnected("connection refused"))
    harness.turn()
    assert harness.front_end.ends == {}
    harness.now = 300.0
    harness.turn()
    late = harness.submit([4], 2)
    harness.turn()
    for handle in (running, queued, late):
        end = harness.front_end.ends[handle]
        assert isinstance(end, Failure)
        assert end.kind is FailureKind.UNAVAILABLE
        assert "the worker is away: connection refused, for more than 300 s" in end.message
    harness.worker.restart()
    harness.turn()
    assert harness.engine.status().ready
    back = harness.submit([5], 3)
    harness.run()
    assert harness.front_end.tokens[back] == expected_tokens([5], 3)


def test_before_the_first_worker_the_reason_tells_what_fails() -> None:
    harness = Harness(connect=False)
    harness.engine.post(Disconnected("UNAVAILABLE: connection refused"))
    harness.turn()
    reason = "no worker has connected yet: UNAVAILABLE: connection refused"
    assert harness.engine.status().reason == reason
    handle = harness.submit([1], 2)
    harness.turn()
    assert harness.front_end.ends[handle].message == reason


def test_a_worker_that_does_not_answer_is_given_up_once_and_its_requests_go_on() -> None:
    harness = Harness(step_timeout=20, pipeline_depth=2)
    handle = harness.submit([1, 2], 6)
    harness.turn()
    harness.step()
    harness.now = 20.0
    harness.turn()
    assert harness.worker.given_up == 0
    harness.now = 20.5
    harness.turn()
    harness.turn()
    assert harness.worker.given_up == 1
    assert not harness.engine.status().ready
    assert "did not answer step 2 for 20 s" in harness.engine.status().reason
    harness.engine.post(Disconnected("CANCELLED"))
    harness.worker.restart()
    harness.turn()
    assert harness.engine.status().ready
    harness.run()
    assert harness.front_end.tokens[handle] == expected_tokens([1, 2], 6)


def test_steps_sent_again_are_waited_for_anew() -> None:
    harness = Harness(step_timeout=20)
    harness.submit([1, 2], 6)
    harness.turn()
    harness.engine.post(Disconnected("cut"))
    harness.now = 60.0
    harness.turn()
    harness.worker.connect(resumed=True)
    harness.turn()
    assert harness.worker.given_up == 0
    harness.now = 81.0
    harness.turn()
    assert harness.worker.given_up == 1


def test_an_idle_worker_owes_nothing() -> None:
    harness = Harness(step_timeout=20)
    harness.now = 1000.0
    harness.turn()
    assert harness.worker.given_up == 0


@pytest.mark.parametrize("name", ["recovery_timeout", "step_timeout"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_timeouts_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is .* must be above 0"):
        EngineConfig(**{name: value})
