import pytest

from scheduler.core.engine import HAND_OVER_SECONDS, MOST_MESSAGES
from scheduler.core.front_end import Failure, FailureKind, Finish, FinishReason
from tests.scheduler.core.fake_worker import FakeWorker, expected_tokens
from tests.scheduler.core.harness import Harness

PROMPT = [5, 6, 7, 8, 9]


def finish(harness: Harness, handle: int) -> Finish:
    end = harness.front_end.ends[handle]
    assert isinstance(end, Finish), end
    return end


def failure(harness: Harness, handle: int) -> Failure:
    end = harness.front_end.ends[handle]
    assert isinstance(end, Failure), end
    return end


def test_a_request_gets_the_models_tokens_and_one_end() -> None:
    harness = Harness()
    handle = harness.submit(PROMPT, 10)
    harness.run()
    assert harness.front_end.tokens[handle] == expected_tokens(PROMPT, 10)
    end = finish(harness, handle)
    assert end.reason is FinishReason.LENGTH
    assert (end.usage.prompt_tokens, end.usage.output_tokens, end.usage.preemptions) == (5, 10, 0)
    harness.assert_pool_is_whole()


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_the_pipeline_depth_changes_no_token(depth: int) -> None:
    harness = Harness(pipeline_depth=depth)
    prompts = [[i, i + 1, *range(i)] for i in range(6)]
    handles = [harness.submit(prompt, 5 + i) for i, prompt in enumerate(prompts)]
    harness.run()
    for i, (handle, prompt) in enumerate(zip(handles, prompts, strict=True)):
        assert harness.front_end.tokens[handle] == expected_tokens(prompt, 5 + i)
    assert max(plan.step_id for plan in harness.worker.log) == len(harness.worker.log)


def test_steps_in_flight_reach_the_depth_and_never_pass_it() -> None:
    harness = Harness(pipeline_depth=3)
    harness.submit(PROMPT, 20)
    harness.turn()
    assert len(harness.worker.unanswered) == 3


def test_only_a_prompt_that_finds_the_device_idle_hands_the_interpreters_lock_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness(pipeline_depth=3)
    slept: list[tuple[float, int]] = []  # with the steps that have been sent by then
    monkeypatch.setattr(
        "scheduler.core.engine.time.sleep",
        lambda seconds: slept.append((seconds, len(harness.worker.log))),
    )
    harness.submit(PROMPT, 9)
    harness.turn()
    harness.submit([*PROMPT, 1], 3)  # while steps are in flight
    harness.run()
    assert [entry for entry in slept if entry[0] > 0] == [(HAND_OVER_SECONDS, 1)]
    harness.submit(PROMPT, 2)
    harness.run()
    assert len([entry for entry in slept if entry[0] > 0]) == 2


def test_a_burst_of_submissions_does_not_hold_up_the_first_step() -> None:
    harness = Harness(pipeline_depth=1)
    handles = [harness.submit([i, i + 1], 3) for i in range(3 * MOST_MESSAGES)]
    harness.turn()
    assert len(harness.worker.log) == 1
    assert harness.engine.worker.ledger.num_requests == MOST_MESSAGES
    harness.run()
    for i, handle in enumerate(handles):
        assert harness.front_end.tokens[handle] == expected_tokens([i, i + 1], 3)


def test_one_turn_wakes_the_front_end_once() -> None:
    harness = Harness(pipeline_depth=1)
    batches = []
    deliver = harness.front_end.deliver
    harness.front_end.deliver = lambda batch: (batches.append(batch), deliver(batch))
    for i in range(5):
        harness.submit([i, i + 1], 3)
    harness.turn()
    harness.step()
    assert [len(batch.handles) for batch in batches] == [5]


def test_an_end_token_ends_a_request_and_wasted_tokens_are_counted() -> None:
    harness = Harness(pipeline_depth=3)
    harness.worker.script["r1"] = [4, 3, 2, *[90] * 50]
    handle = harness.submit(PROMPT, 40, stop_ids=frozenset({2, 60}))
    harness.run()
    assert harness.front_end.tokens[handle] == [4, 3, 2]
    end = finish(harness, handle)
    assert (end.reason, end.stop_token, end.usage.output_tokens) == (FinishReason.STOP, 2, 3)
    assert harness.engine.totals.discarded_tokens == 2
    harness.assert_pool_is_whole()


def test_an_end_token_beats_the_length_at_the_same_token() -> None:
    harness = Harness()
    harness.worker.script["r1"] = [4, 2]
    handle = harness.submit(PROMPT, 2, stop_ids=frozenset({2}))
    harness.run()
    assert finish(harness, handle).reason is FinishReason.STOP


def test_a_request_may_have_more_stop_ids_than_the_first_column_width() -> None:
    harness = Harness()
    harness.worker.script["r1"] = [70, 33, 1]
    handle = harness.submit(PROMPT, 9, stop_ids=frozenset(range(20, 60)))
    harness.run()
    assert harness.front_end.tokens[handle] == [70, 33]


@pytest.mark.parametrize("depth", [1, 3])
def test_a_request_that_is_done_is_in_no_later_step_than_the_overlap(depth: int) -> None:
    """A batch of 8 with M = 1..8."""
    harness = Harness(pipeline_depth=depth)
    for i in range(1, 9):
        harness.submit([i, 3 * i], i, name=f"m{i}")
    harness.run()
    for i in range(1, 9):
        steps = [k for k, names in enumerate(harness.worker.step_requests) if f"m{i}" in names]
        # A length is certain when its last token is planned: no forward is wasted.
        assert len(steps) == i
        assert steps == list(range(i))
    assert harness.engine.totals.discarded_tokens == 0


def test_a_request_without_max_tokens_gets_all_the_room_there_is() -> None:
    harness = Harness(FakeWorker(num_blocks=6, block_size=4, max_model_len=128))
    handle = harness.submit(PROMPT, None)
    harness.run()
    # 20 slots, and the last token sampled needs none.
    assert finish(harness, handle).usage.output_tokens == 21 - len(PROMPT)
    assert finish(harness, handle).reason is FinishReason.LENGTH


def test_the_model_length_bounds_a_request_too() -> None:
    harness = Harness(FakeWorker(num_blocks=60, block_size=4, max_model_len=16))
    handle = harness.submit(PROMPT, None)
    harness.run()
    assert finish(harness, handle).usage.output_tokens == 16 - len(PROMPT)


def test_a_prompt_that_needs_exactly_all_usable_blocks_works() -> None:
    harness = Harness(FakeWorker(num_blocks=6, block_size=4))
    prompt = list(range(20))
    handle = harness.submit(prompt, 1)
    harness.run()
    assert harness.front_end.tokens[handle] == expected_tokens(prompt, 1)


def test_a_request_too_large_for_the_pool_is_refused_at_once_and_those_behind_run() -> None:
    harness = Harness(FakeWorker(num_blocks=6, block_size=4))
    large = [harness.submit(list(range(21)), 1) for _ in range(5)]
    small = [harness.submit([i], 3) for i in range(3)]
    harness.run()
    for handle in large:
        end = failure(harness, handle)
        assert end.kind is FailureKind.INVALID
        assert "22" in end.message
        assert "21 tokens" in end.message
    assert all(finish(harness, handle).usage.output_tokens == 3 for handle in small)


def test_two_requests_with_one_id_are_never_mixed() -> None:
    harness = Harness()
    first = harness.submit(PROMPT, 6, name="same")
    second = harness.submit([1, 2], 6, name="same")
    harness.run()
    assert failure(harness, second).kind is FailureKind.DUPLICATE_ID
    assert harness.front_end.tokens[first] == expected_tokens(PROMPT, 6)
    assert harness.front_end.tokens[second] == []


def test_an_id_is_free_again_right_after_a_cancel() -> None:
    harness = Harness(pipeline_depth=3)
    first = harness.submit(PROMPT, 20, name="same")
    harness.turn()
    harness.abort(first)
    second = harness.submit([1, 2], 6, name="same")
    harness.run()
    assert failure(harness, first).kind is FailureKind.CANCELLED
    assert harness.front_end.tokens[second] == expected_tokens([1, 2], 6)


def test_more_than_rows_and_queue_is_refused_with_a_time_to_retry() -> None:
    """max_rows 4, queue 8, 50 at once: 12 finish, 38 are refused."""
    harness = Harness(FakeWorker(max_rows=4), max_queue=8)
    handles = [harness.submit([i, i], 3) for i in range(50)]
    harness.run()
    ends = [harness.front_end.ends[handle] for handle in handles]
    refused = [end for end in ends if isinstance(end, Failure)]
    assert len(refused) == 38
    assert {end.kind for end in refused} == {FailureKind.QUEUE_FULL}
    assert all(end.retry_after is not None and end.retry_after > 0 for end in refused)
    assert max(len(names) for names in harness.worker.step_requests) == 4
    harness.assert_pool_is_whole()


def test_an_aborts_blocks_are_free_for_the_next_step() -> None:
    harness = Harness(FakeWorker(num_blocks=6, block_size=4), pipeline_depth=1)
    first = harness.submit(list(range(17)), 4)
    second = harness.submit(list(range(16)), 2)
    harness.turn()
    assert harness.books.allocator.num_free == 0
    harness.abort(first)
    harness.step()
    assert harness.worker.log[-1].new_rows[0].request_id == "r2"
    harness.run()
    assert harness.front_end.tokens[second] == expected_tokens(list(range(16)), 2)


def test_an_abort_halfway_through_a_prompt_frees_all_that_it_had() -> None:
    harness = Harness(FakeWorker(num_blocks=12, block_size=4), max_step_tokens=8, pipeline_depth=3)
    first = harness.submit(list(range(40)), 4)
    second = harness.submit([1, 2], 6)
    harness.step()
    assert harness.books.allocator.num_free < 11
    harness.abort(first, FailureKind.DEADLINE)
    harness.run()
    assert failure(harness, first).kind is FailureKind.DEADLINE
    assert harness.front_end.tokens[first] == []
    assert max(int(plan.context_lens.max()) for plan in harness.worker.log) < 40
    assert harness.front_end.tokens[second] == expected_tokens([1, 2], 6)
    harness.assert_pool_is_whole()


def test_aborts_twice_late_unknown_and_while_waiting_are_harmless() -> None:
    harness = Harness(FakeWorker(max_rows=2), pipeline_depth=3)
    running = [harness.submit([i], 12) for i in range(2)]
    waiting = harness.submit([9, 9], 12)
    harness.turn()
    harness.abort(999)
    harness.abort(waiting)
    harness.abort(waiting)
    harness.abort(running[0])
    harness.abort(running[0])
    harness.run()
    harness.abort(running[1])
    harness.turn()
    assert failure(harness, waiting).kind is FailureKind.CANCELLED
    assert failure(harness, running[0]).kind is FailureKind.CANCELLED
    assert harness.front_end.tokens[running[1]] == expected_tokens([1], 12)
    harness.assert_pool_is_whole()


def test_an_abort_in_the_turn_of_the_end_token_gives_one_end() -> None:
    harness = Harness()
    handle = harness.submit(PROMPT, 1)
    harness.turn()
    harness.worker.answer()
    harness.abort(handle)
    harness.turn()
    assert finish(harness, handle).reason is FinishReason.LENGTH


def test_a_stop_string_ends_a_request_at_the_front_ends_count() -> None:
    harness = Harness(pipeline_depth=3)
    handle = harness.submit(PROMPT, 30)
    for _ in range(6):
        harness.step()
    made = len(harness.front_end.tokens[handle])
    assert made > 3
    harness.abort(handle, FinishReason.STOP, output_tokens=3)
    harness.run()
    end = finish(harness, handle)
    assert (end.reason, end.stop_token, end.usage.output_tokens) == (FinishReason.STOP, None, 3)
    totals = harness.engine.totals
    assert totals.output_tokens == 3
    assert totals.output_tokens + totals.discarded_tokens == sum(
        int(plan.samples.sum()) for plan in harness.worker.log
    )


def test_a_request_that_expired_while_waiting_never_starts() -> None:
    harness = Harness(FakeWorker(max_rows=1))
    first = harness.submit(PROMPT, 5)
    second = harness.submit([1], 5, deadline=2.0)
    harness.turn()
    harness.now = 3.0
    harness.run()
    assert finish(harness, first).usage.output_tokens == 5
    assert failure(harness, second).kind is FailureKind.DEADLINE
    assert not any("r2" in names for names in harness.worker.step_requests)


def test_non_finite_logits_fail_that_request_alone() -> None:
    harness = Harness()
    harness.worker.non_finite.add("bad")
    good = harness.submit(PROMPT, 6)
    bad = harness.submit([1, 2, 3], 6, name="bad")
    harness.run()
    assert failure(harness, bad).kind is FailureKind.INTERNAL
    assert "not finite" in failure(harness, bad).message
    assert harness.front_end.tokens[bad] == []
    assert harness.front_end.tokens[good] == expected_tokens(PROMPT, 6)
    harness.assert_pool_is_whole()


def test_usage_times_are_counted_from_arrival() -> None:
    harness = Harness(FakeWorker(max_rows=1), pipeline_depth=1)
    harness.submit([3], 2)
    second = harness.submit(PROMPT, 3)
    for now in range(1, 10):
        harness.now = float(now)
        harness.step()
    # r2 gets the one row at 3, when r1's second token is answered.
    usage = finish(harness, second).usage
    times = (usage.queue_seconds, usage.first_token_seconds, usage.total_seconds)
    assert times == (3.0, 4.0, 6.0)
