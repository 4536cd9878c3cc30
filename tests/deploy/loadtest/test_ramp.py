"""The ramp: which stages hold, and the knee."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from deploy.loadtest.arrivals import Ramp
from deploy.loadtest.goodput import Limits
from deploy.loadtest.ramp import Judge, find_knee
from deploy.loadtest.timeline import Stage, Timeline


def up_to(capacity: float, tried: list[float]) -> Callable[[float], bool | None]:
    def holds(rate: float) -> bool:
        tried.append(round(rate, 3))
        return rate <= capacity

    return holds


def test_rates_double_until_one_does_not_hold_and_then_the_interval_is_halved() -> None:
    tried: list[float] = []
    knee = find_knee(Ramp(1, bisections=3), up_to(11, tried))
    assert tried == [1, 2, 4, 8, 16, 11.314, 9.514, 10.375]
    assert knee == pytest.approx(10.375, abs=0.001)


def test_a_first_rate_that_is_too_high_is_halved_until_one_holds() -> None:
    tried: list[float] = []
    knee = find_knee(Ramp(16, bisections=1), up_to(3, tried))
    assert tried == [16, 8, 4, 2, 2.828]
    assert knee == pytest.approx(2.828, abs=0.001)


def test_the_end_of_the_run_ends_the_search_with_what_held() -> None:
    answers = iter([True, True, None])
    assert find_knee(Ramp(1), lambda _: next(answers)) == 2
    answers = iter([True, False, True, None])
    assert find_knee(Ramp(1, bisections=3), lambda _: next(answers)) == pytest.approx(2**0.5)


def test_no_knee_if_no_rate_holds_and_no_endless_search_if_all_do() -> None:
    tried: list[float] = []
    assert find_knee(Ramp(1), up_to(-1, tried)) is None
    assert len(tried) == 24
    tried.clear()
    assert find_knee(Ramp(1), up_to(float("inf"), tried)) == 2.0**23
    assert len(tried) == 24


def served(planned: float, seconds: float, status: str = "OK", cancelled: bool = False) -> Timeline:
    return Timeline(
        index=0,
        planned=planned,
        sent=planned,
        times=np.array([planned + seconds]),
        token_counts=np.array([1], np.int32),
        has_text=np.array([True]),
        ended=planned + seconds,
        status=status,
        prompt_tokens=1,
        output_tokens=1,
        cancelled=cancelled,
    )


def stage(start: float) -> Stage:
    return Stage(start, start + 10, 10.0, None)


def judge(limits: Limits | None = None) -> Judge:
    return Judge(Ramp(10, stage_seconds=10), limits)


def test_a_stage_holds_if_19_of_20_that_had_time_to_ended_well() -> None:
    half = [served(i / 4, 1.0) for i in range(20)]
    late = [served(9.0, 30.0)] * 50  # planned within the allowance before the end
    bad = served(1.0, 1.0, "UNAVAILABLE")
    assert judge().holds(stage(0), half + late)
    assert judge().holds(stage(0), [*half[1:], bad, *late])
    assert not judge().holds(stage(0), [*half[2:], bad, bad, *late])
    assert not judge().holds(stage(0), [*half[2:], served(1, 9.1), served(2, 8.1), *late])


def test_what_the_plan_cancels_is_no_failure() -> None:
    cancelled = served(1.0, 1.0, "CANCELLED", cancelled=True)
    assert judge().holds(stage(0), [cancelled] * 20)
    assert not judge().holds(stage(0), [served(1.0, 1.0, "CANCELLED")] * 20)


def test_later_stages_must_keep_up_within_twice_the_first_one_s_time() -> None:
    watched = judge()
    assert watched.holds(stage(0), [served(i / 10, 0.5) for i in range(100)])
    # What came until 1 s before the end must have ended: here what came until 2 s did.
    growing = [served(100 + i / 10, 2.0) for i in range(100)]
    assert not watched.holds(stage(100), growing)
    assert judge().holds(stage(100), growing)
    assert watched.holds(stage(100), [served(100 + i / 10, 1.0) for i in range(100)])


def test_goodput_limits_are_to_be_met_by_19_of_20() -> None:
    quick, slow = [served(i / 4, 0.4) for i in range(20)], served(1.0, 0.6)
    limits = Limits(ttft=500)
    assert judge(limits).holds(stage(0), [*quick[1:], slow])
    assert not judge(limits).holds(stage(0), [*quick[2:], slow, slow])
    assert judge().holds(stage(0), [slow] * 20)


def test_a_stage_without_a_request_to_judge_by_has_no_verdict() -> None:
    assert judge().holds(stage(0), [served(9.0, 0.1)]) is None
