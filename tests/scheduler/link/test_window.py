"""The steps in flight, and the waits between tries."""

from __future__ import annotations

import pytest

from nanoserve.v1 import worker_pb2
from scheduler.link.backoff import Backoff
from scheduler.link.window import Window


def step(step_id: int, incarnation: int = 9, decode_steps: int | None = None) -> worker_pb2.Step:
    return worker_pb2.Step(step_id=step_id, incarnation=incarnation, decode_steps=decode_steps)


def test_steps_are_answered_oldest_first() -> None:
    window = Window(9)
    assert all(window.add(step(i)) for i in (1, 2, 3))
    answered = window.answered(1, 0)
    assert answered is not None
    assert answered[1] > 0
    assert [message.step_id for message in window.send_again()] == [2, 3]


def test_an_answer_out_of_order_or_to_nothing_raises() -> None:
    window = Window(9)
    with pytest.raises(LookupError, match="step 1 was answered, but the oldest unanswered is None"):
        window.answered(1, 0)
    window.add(step(4))
    with pytest.raises(LookupError, match="step 5 was answered, but the oldest unanswered is 4"):
        window.answered(5, 0)
    assert len(window) == 1


def test_a_step_is_kept_until_its_last_repetition_is_answered() -> None:
    window = Window(9)
    window.add(step(1, decode_steps=3))
    window.add(step(2))
    for sub_step in range(3):
        assert len(window) == 2
        assert window.answered(1, sub_step) is not None
    assert window.answered(2, 0) is not None
    assert len(window) == 0


def test_results_that_a_stream_brings_again_are_passed_over_and_only_then() -> None:
    window = Window(9)
    window.add(step(1, decode_steps=3))
    for sub_step in range(2):
        assert window.answered(1, sub_step) is not None
    with pytest.raises(LookupError, match="sub_step 1 of step 1 was answered, but 2 is next"):
        window.answered(1, 1)
    for _ in range(2):
        assert [message.step_id for message in window.send_again()] == [1]
        assert [window.answered(1, sub_step) for sub_step in range(2)] == [None, None]
    assert window.answered(1, 2) is not None
    assert len(window) == 0


def test_a_result_that_skips_a_repetition_raises() -> None:
    window = Window(9)
    window.add(step(1, decode_steps=3))
    with pytest.raises(LookupError, match="sub_step 1 of step 1 was answered, but 0 is next"):
        window.answered(1, 1)


def test_a_step_of_another_incarnation_is_not_taken() -> None:
    window = Window(9)
    assert not window.add(step(1, incarnation=8))
    assert len(window) == 0


def test_waits_double_up_to_their_bound_and_start_again() -> None:
    backoff = Backoff(first=0.05, most=2.0)
    bounds = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    for bound in bounds:
        assert bound / 2 <= backoff.next_delay() <= bound
    backoff.reset()
    assert backoff.next_delay() <= 0.05


def test_waits_are_not_the_same_for_all() -> None:
    assert len({Backoff().next_delay() for _ in range(10)}) > 1
