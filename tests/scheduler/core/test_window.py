from dataclasses import replace

import numpy as np
import pytest

from scheduler.core.step_in_flight import StepInFlight
from scheduler.core.window import StepCost, Window
from scheduler.core.worker_link import StepAnswer, StepTimes


def step(step_id: int, num_tokens: int = 1, decode_steps: int = 1) -> StepInFlight:
    none = np.empty(0, np.int64)
    return StepInFlight(step_id, decode_steps, num_tokens, *[none] * 9)


def decodes(step_id: int, rows: int, decode_steps: int = 1) -> StepInFlight:
    return replace(
        step(step_id, rows, decode_steps), rows=np.arange(rows), all_rows=np.arange(rows)
    )


def answer(step_id: int, seconds: float, sub_step: int = 0) -> StepAnswer:
    times = StepTimes(device=round(seconds * 1e9))
    return StepAnswer(step_id, np.empty(0, np.int32), None, times, sub_step=sub_step)


def learned(window: Window, num_tokens: int, seconds: float) -> Window:
    window.sent(step(0, num_tokens), 0.0)
    window.answered(answer(0, seconds), 0.0)
    return window


def test_short_steps_fill_the_window_to_its_depth() -> None:
    window = learned(Window(depth=3), 1, 0.0006)
    for i in range(1, 4):
        assert window.wait_before_sending(0.0) == 0.0
        window.sent(step(i), 0.0)
    assert window.wait_before_sending(0.0) is None


def test_a_step_behind_a_long_one_is_sent_shortly_before_the_device_runs_dry() -> None:
    window = learned(Window(depth=3), 2048, 1.0)
    window.sent(step(1, 2048), 10.0)
    assert window.wait_before_sending(10.0) == pytest.approx(0.75)
    assert window.wait_before_sending(10.5) == pytest.approx(0.25)
    assert window.wait_before_sending(10.8) == 0.0


def test_an_answer_restarts_the_clock_of_the_step_behind_it() -> None:
    window = learned(Window(depth=3), 1, 0.020)
    window.sent(step(1), 5.0)
    window.sent(step(2), 5.018)
    window.answered(answer(1, 0.020), 5.030)
    assert window.wait_before_sending(5.030) == pytest.approx(0.020 - 0.005)


def test_a_size_never_seen_does_not_hold_the_pipeline_up() -> None:
    window = Window(depth=2)
    window.sent(step(1, 500), 0.0)
    assert window.wait_before_sending(0.0) == 0.0


def test_costs_follow_the_device_smoothly() -> None:
    cost = StepCost()
    cost.learn(100, 1.0)
    cost.learn(100, 2.0)
    assert cost.predict(100) == pytest.approx(1.2)
    assert cost.predict(127) == pytest.approx(1.2)
    assert cost.predict(128) == 0.0


def test_an_answer_out_of_order_raises() -> None:
    window = Window(depth=2)
    window.sent(step(1), 0.0)
    window.sent(step(2), 0.0)
    with pytest.raises(ValueError, match="step 2 was answered where 1 was next"):
        window.answered(answer(2, 0.0), 0.0)


def test_a_step_is_learned_repetition_by_repetition_and_stays_until_the_last() -> None:
    window = Window(depth=3, decode_steps=4)
    window.sent(decodes(1, 2, decode_steps=3), 0.0)
    for sub_step in range(3):
        assert window.answered(answer(1, 0.001, sub_step), 0.1).unanswered == 2 - sub_step
        assert len(window) == (sub_step < 2)
    assert window.cost.predict(2) == pytest.approx(0.001)


def test_an_answer_to_another_repetition_than_the_next_raises() -> None:
    window = Window(depth=2, decode_steps=4)
    window.sent(decodes(1, 2, decode_steps=2), 0.0)
    window.answered(answer(1, 0.0, 0), 0.0)
    for stale in (0, 2):
        with pytest.raises(ValueError, match=f"sub_step {stale} of step 1 was answered where 1 "):
            window.answered(answer(1, 0.0, stale), 0.0)


@pytest.mark.parametrize(
    ("milliseconds", "repetitions"),
    [(0.0, 8), (0.2, 8), (0.25, 8), (0.3, 6), (0.8, 2), (1.0, 2), (1.1, 1), (20.0, 1)],
)
def test_the_repetitions_of_a_step_take_at_most_half_of_the_lookahead(
    milliseconds: float, repetitions: int
) -> None:
    window = learned(Window(depth=3, decode_steps=8), 1, milliseconds / 1e3)
    assert window.repetitions(1, 0.0) == repetitions


def test_a_size_never_seen_is_not_repeated() -> None:
    window = learned(Window(depth=3, decode_steps=8), 1, 0.0003)
    assert window.repetitions(2, 0.0) == 1


def test_a_repeated_step_is_sent_when_all_of_it_fits_beside_what_is_in_flight() -> None:
    window = learned(Window(depth=8, decode_steps=4), 2, 0.0003)
    now = 5.0
    for step_id in (1, 2, 3):
        assert window.wait_before_sending(now) == 0.0
        assert window.repetitions(2, now) == 4
        window.sent(decodes(step_id, 2, decode_steps=4), now)
    # 3.6 ms are in flight, and three repetitions of the next would take 0.9.
    assert window.wait_before_sending(now) == pytest.approx(0.0005)
    window.answered(answer(1, 0.0003, 0), now + 0.0003)
    assert window.wait_before_sending(now + 0.0003) == pytest.approx(0.0002)
    window.answered(answer(1, 0.0003, 1), now + 0.0006)
    assert window.wait_before_sending(now + 0.0006) == 0.0
    assert window.repetitions(2, now + 0.0006) == 4


def test_behind_a_step_with_prompts_only_what_is_left_of_the_lookahead_is_filled() -> None:
    window = learned(learned(Window(depth=8, decode_steps=8), 2, 0.0003), 500, 0.0032)
    window.sent(step(1, 500), 5.0)
    assert window.wait_before_sending(5.0) == 0.0
    # 0.8 ms are left, and the first repetition is free, as a single step would be.
    assert window.repetitions(2, 5.0) == 3


def test_with_repetitions_as_without_an_arrival_waits_for_the_lookahead_and_one_more() -> None:
    """A device that takes just as long as predicted, whatever that is."""
    rng = np.random.default_rng(1)
    for most in (1, 2, 4, 8):
        for seconds in (0.0001, 0.0003, 0.0008, 0.0021, 0.005):
            window = learned(Window(depth=16, decode_steps=most), 4, seconds)
            now, step_id, counts = 10.0, 0, set()
            for _ in range(300):
                while window.wait_before_sending(now) == 0.0:
                    count = min(int(rng.integers(1, 9)), window.repetitions(4, now))
                    counts.add(count)
                    window.sent(decodes(step_id := step_id + 1, 4, count), now)
                    left = sum(step.unanswered for step in window.steps) * seconds
                    assert left <= 0.004 + seconds + 1e-9
                now += seconds
                oldest = window.steps[0]
                window.answered(answer(oldest.step_id, seconds, len(oldest.answers)), now)
            assert max(counts) == max(1, min(most, int(0.002 / seconds + 1e-6)))
