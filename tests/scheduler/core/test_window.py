import numpy as np
import pytest

from scheduler.core.planner import StepInFlight
from scheduler.core.window import StepCost, Window


def step(step_id: int, num_tokens: int = 1) -> StepInFlight:
    none = np.empty(0, np.int64)
    return StepInFlight(step_id, num_tokens, *[none] * 9)


def learned(window: Window, num_tokens: int, seconds: float) -> Window:
    window.sent(step(0, num_tokens), 0.0)
    window.answered(0, seconds, 0.0)
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
    window.answered(1, 0.020, 5.030)
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
        window.answered(2, 0.0, 0.0)
