"""What the engine counts and measures, on a clock that the test turns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler.core.front_end import Failure, FailureKind, FinishReason
from scheduler.core.statistics import RequestTimes
from scheduler.core.worker_link import StepTimes
from tests.scheduler.core.fake_worker import FakeWorker
from tests.scheduler.core.harness import Harness

PROMPT = [3, 1, 4, 1, 5]


def test_times_of_a_request_are_those_of_its_tokens() -> None:
    harness = Harness(pipeline_depth=1)
    harness.submit(PROMPT, 3)
    for now in (1.0, 3.0, 6.5):
        harness.turn()
        harness.now = now
        harness.step()
    times = harness.engine.statistics.requests
    assert (times.first_token.count, times.first_token.sum) == (1, 1.0)
    assert (times.inter_token.count, times.inter_token.sum) == (2, 5.5)
    assert (times.queue.sum, times.prefill.sum, times.decode.sum) == (0.0, 1.0, 5.5)
    assert (times.total.count, times.total.sum) == (1, 6.5)
    assert (times.prompt_tokens.sum, times.output_tokens.sum) == (5, 3)


def test_a_wait_of_milliseconds_is_told_from_one_of_a_tenth_of_a_second() -> None:
    queue = RequestTimes().queue
    for seconds in (0.002, 0.009, 0.15):
        queue.observe(seconds)
    within = dict(zip(queue.bounds, np.cumsum(queue.counts), strict=False))
    assert (within[0.0025], within[0.01], within[0.1], within[0.3]) == (1, 2, 2, 3)


@pytest.mark.parametrize(("prefix_cache", "recomputed"), [(False, 8), (True, 0)])
def test_a_preemption_shows_as_one_long_gap_and_what_it_computes_again_as_recomputed(
    prefix_cache: bool, recomputed: int
) -> None:
    """Two rows of 10 tokens want 3 blocks each of 5: the younger is put back once, and finds
    its two blocks again if they are kept."""
    harness = Harness(
        FakeWorker(num_blocks=6, block_size=4, max_rows=2),
        pipeline_depth=1,
        prefix_cache=prefix_cache,
    )
    handles = [harness.submit([1, 2, 3], 8), harness.submit([4, 5, 6], 8)]
    while len(harness.front_end.ends) < 2:
        harness.now += 1.0
        harness.turn()
        harness.worker.answer()
        harness.turn()
    statistics = harness.engine.statistics
    usages = [harness.front_end.ends[handle].usage for handle in handles]
    assert (usages[0].preemptions, usages[0].recomputed_tokens) == (0, 0)
    assert usages[1].preemptions == statistics.totals.preemptions == 1
    assert usages[1].recomputed_tokens == statistics.totals.recomputed_tokens == recomputed
    assert usages[1].cached_tokens == 0, "what it finds of its own was no hit of its prompt"
    assert statistics.requests.inter_token.count == 2 * (8 - 1)
    assert statistics.requests.inter_token.counts[-7:].sum() == 1  # the gap of over 2.5 s
    assert statistics.requests.decode.sum == statistics.requests.inter_token.sum


def test_a_failed_request_has_its_usage_and_no_times_of_a_good_end() -> None:
    harness = Harness(pipeline_depth=1)
    handle = harness.submit(PROMPT, 9)
    for now in (1.0, 2.0):
        harness.turn()
        harness.now = now
        harness.step()
    harness.now = 4.0
    harness.abort(handle)
    harness.turn()
    end = harness.front_end.ends[handle]
    assert isinstance(end, Failure)
    assert end.kind is FailureKind.CANCELLED
    usage = end.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens) == (5, 2)
    assert (usage.queue_seconds, usage.first_token_seconds, usage.total_seconds) == (0.0, 1.0, 4.0)
    times = harness.engine.statistics.requests
    assert (times.first_token.count, times.total.count) == (1, 0)


def test_a_refused_request_has_no_usage() -> None:
    harness = Harness()
    harness.submit([1, 2], 3, name="twice")
    second = harness.submit([1, 2], 3, name="twice")
    harness.turn()
    assert harness.front_end.ends[second].usage is None


def test_a_stop_string_found_later_counts_only_the_tokens_up_to_it() -> None:
    harness = Harness(pipeline_depth=3)
    handle = harness.submit(PROMPT, 30)
    for _ in range(6):
        harness.step()
    harness.abort(handle, FinishReason.STOP, output_tokens=2)
    harness.run()
    assert harness.engine.statistics.requests.output_tokens.sum == 2


def test_a_steps_times_bytes_and_sizes_are_those_of_its_answer() -> None:
    harness = Harness(pipeline_depth=1)
    harness.submit(PROMPT, 1)
    harness.submit([7, 7], 1)
    harness.turn()
    answer = harness.worker.unanswered[0]
    times = StepTimes(device=3_000_000, sample=1_000_000, total=5_000_000, round_trip=7_000_000)
    harness.worker.unanswered[0] = replace(
        answer, times_ns=replace(times, idle=2_000_000), bytes_sent=300, bytes_received=40
    )
    harness.step()
    steps = harness.engine.statistics.steps
    assert (steps.round_trip.sum, steps.wire.sum) == (0.007, 0.002)
    assert (steps.device.sum, steps.device_idle.sum) == (0.004, 0.002)
    assert (steps.tokens.sum, steps.rows.sum, steps.rows.count) == (7, 2, 1)
    assert (steps.bytes_sent, steps.bytes_received) == (300, 40)


def test_an_idle_time_that_is_not_told_is_not_counted_as_zero() -> None:
    harness = Harness()
    harness.submit(PROMPT, 2)
    harness.run()
    steps = harness.engine.statistics.steps
    assert steps.round_trip.count == 2
    assert steps.device_idle.count == 0


def test_a_new_incarnation_counts_as_a_restart_and_the_first_one_does_not() -> None:
    harness = Harness()
    assert harness.engine.status().worker_restarts == 0
    harness.worker.restart()
    harness.turn()
    assert harness.engine.status().worker_restarts == 1
