"""What a worker measures of its steps."""

from __future__ import annotations

import numpy as np
import pytest

from nanoserve.v1 import worker_pb2
from scheduler.core import statistics as scheduler_statistics
from tests.worker.running_worker import RunningWorker, Stream, connect, running_worker
from tests.worker.step_messages import first_step, int32, int64, second_step
from worker.histogram import Histogram
from worker.statistics import STEP_BOUNDS, StepDurations


def times(**nanoseconds: int) -> worker_pb2.StepTimes:
    return worker_pb2.StepTimes(**nanoseconds)


def test_a_value_counts_in_the_first_range_whose_bound_it_does_not_pass() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0.0, 1.0, 1.5, 5.0, 5.1, 100.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 2]
    assert histogram.sum == pytest.approx(112.6)


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0)])
def test_bounds_that_do_not_rise_are_refused(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="histogram bounds must rise"):
        Histogram(bounds)


def test_a_copy_stays_as_it_is_while_counting_goes_on() -> None:
    durations = StepDurations()
    before = durations.copy()
    durations.answered([times(queue=1, total=2)])
    assert [sum(histogram.counts) for histogram in before.values()] == [0] * 6
    assert sum(durations.copy()["queue"].counts) == 1


def test_the_ranges_are_those_of_the_schedulers_steps() -> None:
    assert scheduler_statistics.STEP_BOUNDS == STEP_BOUNDS


def test_repetitions_of_a_step_count_as_one_whose_device_time_is_their_sum() -> None:
    durations = StepDurations()
    durations.answered(
        [
            times(queue=1_000, input=2_000, device=30_000_000, sample=1_000, total=40_000_000),
            times(queue=1_000, input=2_000, device=30_000_000, sample=2_000, total=80_000_000),
        ]
    )
    durations.answered([times(queue=5_000, device=1_000_000, idle=7_000_000, total=9_000_000)])
    sums = {name: histogram.sum for name, histogram in durations.copy().items()}
    assert sums == pytest.approx(
        {
            "queue": 6e-6,
            "input": 2e-6,
            "device": 61e-3,
            "sample": 3e-6,
            "total": 89e-3,
            "idle": 7e-3,
        }
    )
    counts = {name: sum(histogram.counts) for name, histogram in durations.copy().items()}
    assert counts == {"queue": 2, "input": 2, "device": 2, "sample": 2, "total": 2, "idle": 1}


def durations_of(worker: RunningWorker) -> dict[str, int]:
    copied = worker.session.statistics.durations.copy()
    return {name: sum(histogram.counts) for name, histogram in copied.items()}


def test_steps_are_counted_with_what_they_computed_and_how_long_they_took() -> None:
    with running_worker() as worker, worker.stub() as stub:
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        results = [stream.ask(first_step(incarnation)), stream.ask(second_step(incarnation))]
        statistics = worker.session.statistics
        assert (statistics.steps, statistics.tokens_computed, statistics.tokens_sampled) == (
            2,
            9,
            3,
        )
        assert durations_of(worker) == {
            "queue": 2,
            "input": 2,
            "device": 2,
            "sample": 2,
            "total": 2,
            "idle": 1,
        }
        total = statistics.durations.copy()["total"].sum
        assert total == pytest.approx(sum(result.times.total for result in results) / 1e9)


def test_a_repeated_answer_is_not_counted_again() -> None:
    with running_worker() as worker, worker.stub() as stub:
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.ask(first_step(incarnation))
        assert stream.ask(first_step(incarnation)).step_id == 1
        assert worker.session.statistics.steps == 1
        assert durations_of(worker)["total"] == 1


def test_refusals_are_counted_by_reason_and_resets_connects_and_incarnations_too() -> None:
    with running_worker() as worker, worker.stub() as stub:
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.ask(first_step(incarnation ^ 1))
        stream.ask(first_step(incarnation))
        stream.ask(second_step(incarnation, rows=int32(7, 1)))
        stream.ask(second_step(incarnation))  # the same step again: the same refusal
        for _ in range(2):
            stream.ask(worker_pb2.Step(step_id=3, incarnation=incarnation))
        stub.Reset(worker_pb2.ResetRequest(epoch=5))
        connect(stub)
        connect(stub, epoch=6)  # takes the worker over: a third incarnation
        statistics = worker.session.statistics
        assert statistics.refused_steps == {
            worker_pb2.REFUSAL_REASON_WRONG_INCARNATION: 1,
            worker_pb2.REFUSAL_REASON_BAD_STEP: 1,
            worker_pb2.REFUSAL_REASON_FOLLOWS_REFUSED: 2,
        }
        assert (statistics.steps, statistics.connects, statistics.resets) == (1, 3, 1)
        assert statistics.incarnations == 3


def test_device_idle_is_told_for_every_step_but_the_first() -> None:
    with running_worker() as worker, worker.stub() as stub:
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        step = second_step(incarnation, rows=int32(3), query_lens=int32(1), context_lens=int32(6))
        step.slot_mapping, step.samples, step.decode_steps = int64(37, 38), b"\1", 2
        stream.send(first_step(incarnation), step)
        results = [next(stream.call) for _ in range(3)]
        assert [result.times.HasField("idle") for result in results] == [False, True, True]
        assert np.all([result.times.idle >= 0 for result in results])
