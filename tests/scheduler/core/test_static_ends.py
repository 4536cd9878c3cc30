"""When the requests of a static batch end, and what leaves it earlier."""

from __future__ import annotations

import pytest

from scheduler.core.front_end import Failure, FailureKind, Finish, FinishReason
from tests.scheduler.core.fake_worker import FakeWorker, expected_tokens
from tests.scheduler.core.test_static_batching import sampled, static


def test_with_each_a_request_ends_at_its_own_last_token() -> None:
    harness = static()
    slow, short = harness.submit([1], 20), harness.submit([2], 3)
    for _ in range(4):
        harness.step()
    end = harness.front_end.ends[short]
    assert isinstance(end, Finish)
    assert harness.engine.status().running == 1
    assert slow not in harness.front_end.ends
    assert harness.books.rows.num_live == 2, "its row and blocks stay"
    assert harness.books.tables.num_blocks[harness.books.rows.held].tolist() == [1]
    again = harness.submit([2], 3, name="r2")
    harness.run()
    assert isinstance(harness.front_end.ends[again], Finish), "its id was free at once"


def test_with_batch_a_request_ends_when_its_batch_does_with_the_time_that_took() -> None:
    harness = static(return_together=True)
    slow, short = harness.submit([1], 20), harness.submit([2], 3)
    harness.turn()
    for _ in range(20):
        harness.now += 1.0
        assert not harness.front_end.ends
        harness.step()
    assert harness.front_end.tokens[short] == expected_tokens([2], 3)
    assert list(harness.front_end.ends) == [slow, short]
    end = harness.front_end.ends[short]
    assert isinstance(end, Finish)
    assert end.usage.output_tokens == 3
    assert (end.usage.first_token_seconds, end.usage.total_seconds) == (1.0, 20.0)


@pytest.mark.parametrize("return_together", [False, True])
def test_a_cancelled_row_leaves_its_batch_at_once_and_nobody_takes_its_place(
    return_together: bool,
) -> None:
    harness = static(return_together=return_together)
    cancelled = harness.submit([1] * 9, 40)
    other = harness.submit([2], 12)
    harness.step()
    harness.step()
    before = harness.books.allocator.num_free
    harness.abort(cancelled)
    harness.step()
    end = harness.front_end.ends[cancelled]
    assert isinstance(end, Failure)
    assert end.kind is FailureKind.CANCELLED
    assert harness.books.allocator.num_free == before + 12
    joined = harness.submit([5], 2)
    harness.run()
    assert harness.front_end.tokens[other] == expected_tokens([2], 12)
    assert harness.front_end.tokens[joined] == expected_tokens([5], 2)
    starts = [i for i, plan in enumerate(harness.worker.log) if plan.new_rows]
    assert starts == [0, 12], "the other one's 12 tokens, then the next batch"
    harness.assert_pool_is_whole()


@pytest.mark.parametrize("return_together", [False, True])
def test_when_the_slowest_is_cancelled_the_batch_is_over(return_together: bool) -> None:
    harness = static(depth=2, return_together=return_together)
    slow, short = harness.submit([1], 60), harness.submit([2], 3)
    for _ in range(8):
        harness.step()
    steps = len(harness.worker.log)
    harness.abort(slow)
    harness.turn()
    assert isinstance(harness.front_end.ends[short], Finish)
    assert harness.books.rows.num_live == 0
    harness.run()
    assert len(harness.worker.log) == steps
    assert harness.engine.totals.output_tokens + harness.engine.totals.discarded_tokens == sampled(
        harness
    )


def test_a_withheld_end_gives_way_to_a_stop_string_at_an_earlier_token() -> None:
    harness = static(return_together=True)
    harness.submit([1], 12)
    short = harness.submit([2], 4)
    for _ in range(6):
        harness.step()
    harness.abort(short, FinishReason.STOP, output_tokens=3)
    harness.run()
    end = harness.front_end.ends[short]
    assert isinstance(end, Finish)
    assert (end.reason, end.usage.output_tokens) == (FinishReason.STOP, 3)
    totals = harness.engine.totals
    assert (totals.output_tokens, totals.discarded_tokens) == (12 + 3, 1 + 8)


def test_a_stop_string_ends_a_row_that_then_decodes_on() -> None:
    harness = static()
    harness.submit([1], 12)
    stopped = harness.submit([2], 10)
    for _ in range(5):
        harness.step()
    harness.abort(stopped, FinishReason.STOP, output_tokens=4)
    harness.turn()
    end = harness.front_end.ends[stopped]
    assert isinstance(end, Finish)
    assert end.usage.output_tokens == 4
    harness.run()
    assert all(len(plan.rows) == 2 for plan in harness.worker.log)
    totals = harness.engine.totals
    assert (totals.output_tokens, totals.discarded_tokens) == (12 + 4, 8)


def test_a_withheld_request_may_still_be_cancelled() -> None:
    harness = static(return_together=True)
    harness.submit([1], 12)
    short = harness.submit([2], 2)
    for _ in range(4):
        harness.step()
    harness.abort(short)
    harness.turn()
    end = harness.front_end.ends[short]
    assert isinstance(end, Failure)
    assert (end.kind, harness.books.rows.num_live) == (FailureKind.CANCELLED, 1)
    harness.run()
    assert len(harness.worker.log[-1].rows) == 1


def test_logits_that_are_not_finite_fail_a_running_row_and_count_for_nothing_in_a_held() -> None:
    worker = FakeWorker()
    harness = static(worker)
    good, bad, held = (harness.submit([i], n) for i, n in ((1, 9), (2, 9), (3, 2)))
    for _ in range(4):
        harness.step()
    worker.non_finite |= {"r2", "r3"}
    harness.run()
    failure = harness.front_end.ends[bad]
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.INTERNAL
    assert isinstance(harness.front_end.ends[held], Finish)
    assert harness.front_end.tokens[good] == expected_tokens([1], 9)
    harness.assert_pool_is_whole()


@pytest.mark.parametrize("return_together", [False, True])
@pytest.mark.parametrize("steps", [0, 2, 5, 8])
def test_a_new_worker_recomputes_what_is_not_done_and_ends_what_is(
    steps: int, return_together: bool
) -> None:
    harness = static(FakeWorker(max_rows=3), depth=2, return_together=return_together)
    counts = [3, 12, 6, 4, 4]
    handles = [harness.submit([i, i], count) for i, count in enumerate(counts)]
    harness.turn()
    for _ in range(steps):
        harness.step()
    done = [h for h in handles[:3] if len(harness.front_end.tokens[h]) == counts[h - 1]]
    before = len(harness.worker.log)
    harness.worker.restart()
    harness.turn()
    assert set(done) <= harness.front_end.ends.keys()
    again = {new.request_id for plan in harness.worker.log[before:] for new in plan.new_rows}
    assert not again & {f"r{handle}" for handle in done}
    harness.run()
    for i, handle in enumerate(handles):
        assert harness.front_end.tokens[handle] == expected_tokens([i, i], counts[i])
        end = harness.front_end.ends[handle]
        assert isinstance(end, Finish)
        assert end.usage.preemptions == (handle not in done and handle <= 3)
    harness.assert_pool_is_whole()


def test_at_the_drain_deadline_a_withheld_end_is_sent_and_the_others_fail() -> None:
    harness = static(return_together=True)
    slow, short = harness.submit([1], 60), harness.submit([2], 3)
    for _ in range(6):
        harness.step()
    harness.engine.drain(deadline=10.0)
    harness.now = 10.0
    harness.turn()
    assert isinstance(harness.front_end.ends[short], Finish)
    failure = harness.front_end.ends[slow]
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.UNAVAILABLE
    harness.assert_pool_is_whole()
