"""What keeps an overloaded server from taking more than it can serve in time."""

from __future__ import annotations

import random

import pytest

from scheduler.core.admission import retry_after
from scheduler.core.config import EngineConfig
from scheduler.core.front_end import Failure, FailureKind, Finish
from scheduler.core.queue_wait import QueueWait
from tests.scheduler.core.fake_worker import FakeWorker
from tests.scheduler.core.harness import Harness


def test_the_expected_wait_is_that_of_those_ahead_at_the_pace_they_are_admitted() -> None:
    wait = QueueWait()
    assert wait.expected(5, 0.0) == 0.0, "nothing is known"
    for i in range(200):
        wait.observe(admitted=2 * i, waiting=10, now=0.5 * i)
    assert wait.expected(0, 99.5) == 0.0
    assert wait.expected(11, 99.5) == pytest.approx(12 * 0.25)


def test_an_empty_queues_pace_is_the_clients_and_teaches_nothing() -> None:
    wait = QueueWait()
    for i in range(50):
        wait.observe(admitted=i, waiting=0, now=100.0 * i)
    assert wait.expected(1, 5000.0) == 0.0


def test_a_queue_that_stands_still_is_expected_to_take_longer_and_longer() -> None:
    wait = QueueWait()
    for i in range(100):
        wait.observe(admitted=i, waiting=10, now=0.1 * i)
    pace = 31 / 32 * 0.1 + 1 / 32 * 3.0
    assert wait.expected(9, 9.9 + 3.0) == pytest.approx(3.0 + 9 * pace)


def test_a_short_pause_does_not_turn_those_away_whom_the_queue_has_time_for() -> None:
    """One row, a second a request, twenty of which wait: some 21 s at their pace."""
    harness = Harness(FakeWorker(max_rows=1), pipeline_depth=1, max_queue_wait=40.0)
    for _ in range(60):
        harness.submit([1], 1)
    for _ in range(40):
        harness.turn()
        harness.now += 1.0
        harness.step()
    harness.now += 5.0  # the worker is away
    kept = harness.submit([1], 1)
    harness.turn()
    assert kept not in harness.front_end.ends
    harness.now += 30.0
    refused = harness.submit([1], 1)
    harness.turn()
    assert isinstance(harness.front_end.ends[refused], Failure)
    harness.run()
    assert isinstance(harness.front_end.ends[kept], Finish)


def test_those_beyond_the_wait_are_refused_at_once_with_a_time_to_retry() -> None:
    """One row, ten seconds a request."""
    harness = Harness(FakeWorker(max_rows=1), pipeline_depth=1, max_queue_wait=35.0)
    handles = [harness.submit([1], 10) for _ in range(4)]
    for _ in range(35):
        harness.turn()
        harness.now += 1.0
        harness.step()
    assert sum(isinstance(end, Finish) for end in harness.front_end.ends.values()) == 3
    waiting = [harness.submit([1], 10) for _ in range(6)]
    harness.turn()
    refused = [harness.front_end.ends.get(handle) for handle in waiting]
    assert refused[:3] == [None] * 3
    for end in refused[3:]:
        assert isinstance(end, Failure)
        assert end.kind is FailureKind.QUEUE_FULL
        assert "would wait for about" in end.message
        assert "the limit is 35 s" in end.message
        assert end.retry_after is not None
        assert end.retry_after >= 1.0
    assert harness.engine.status().expected_wait > 35.0
    harness.run()
    for handle in (*handles, *waiting[:3]):
        assert isinstance(harness.front_end.ends[handle], Finish)
    assert harness.engine.status().expected_wait == 0.0


def test_the_time_in_which_nobody_waited_is_no_pace_of_the_queue_that_forms_after_it() -> None:
    wait = QueueWait()
    for i in range(100):
        wait.observe(admitted=i, waiting=10, now=0.1 * i)
    wait.observe(admitted=100, waiting=0, now=10.0)
    wait.observe(admitted=100, waiting=3, now=1000.0)
    assert wait.expected(3, 1000.0) == pytest.approx(4 * 0.1)
    wait.observe(admitted=101, waiting=2, now=1000.1)
    assert wait.expected(2, 1000.1) == pytest.approx(3 * 0.1)


@pytest.mark.parametrize(
    ("expected", "seconds"), [(10.0, 1.0), (35.5, 1.0), (45.0, 10.0), (95.0, 60.0), (6e4, 60.0)]
)
def test_whoever_is_refused_comes_again_when_the_wait_may_be_short_or_in_a_minute(
    expected: float, seconds: float
) -> None:
    assert retry_after(expected, limit=35.0) == seconds


def test_under_three_times_the_load_most_that_are_taken_start_in_time() -> None:
    """Four rows, about 5 s a request: the server starts 0.8 a second, and 2.4 come."""
    rng = random.Random(0)
    worker = FakeWorker(max_rows=4, num_blocks=400, max_model_len=64)
    harness = Harness(worker, pipeline_depth=1, max_queue_wait=10.0)
    coming = 0.0
    for _ in range(600):
        while coming < harness.now:
            harness.submit([1, 2], rng.randint(2, 8))
            coming += rng.expovariate(2.4)
        harness.turn()
        harness.now += 1.0
        harness.step()
    ends = harness.front_end.ends.values()
    waits = [end.usage.queue_seconds for end in ends if isinstance(end, Finish)]
    refused = sum(isinstance(end, Failure) for end in ends)
    assert len(waits) > 0.9 * 600 * 4 / 5, "the server was busy all the time"
    assert refused > len(waits)
    assert sum(wait <= 15.0 for wait in waits) > 0.95 * len(waits)


def test_the_tokens_of_those_that_wait_are_bounded() -> None:
    harness = Harness(FakeWorker(max_rows=1), max_queue_tokens=20)
    running = harness.submit([7] * 12, 4)
    harness.turn()
    first, second, third = (harness.submit([7] * 12, 4) for _ in range(3))
    harness.turn()
    # The first comes to an empty queue, and its prompt is smaller than the limit.
    assert harness.front_end.ends.keys() == {second, third}
    end = harness.front_end.ends[second]
    assert end.kind is FailureKind.QUEUE_FULL
    assert "12 tokens behind 12 that wait" in end.message
    harness.run()
    assert isinstance(harness.front_end.ends[running], Finish)
    assert isinstance(harness.front_end.ends[first], Finish)


@pytest.mark.parametrize(
    ("name", "value"), [("max_queue_tokens", 0), ("max_queue_wait", 0), ("max_queue_wait", -1)]
)
def test_limits_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        EngineConfig(**{name: value})
