"""The waste of static batching, to the token, and that continuous batching has none."""

from __future__ import annotations

import pytest

from scheduler.core.continuous_batching import ContinuousBatching
from scheduler.core.front_end import (
    FREE_BLOCK,
    Finish,
    FinishReason,
    SnapshotRequest,
)
from scheduler.core.policy import Policy
from scheduler.core.static_batching import StaticBatching
from tests.scheduler.core.fake_worker import FakeWorker, expected_tokens
from tests.scheduler.core.harness import Harness


def static(worker: FakeWorker | None = None, depth: int = 1, **policy) -> Harness:
    return Harness(worker, policy=StaticBatching(**policy), pipeline_depth=depth)


def seven_behind_one(policy: Policy, depth: int) -> tuple[Harness, int, list[int]]:
    """Seven requests of 4 tokens and one of 32, all sent at once and run to their ends."""
    harness = Harness(FakeWorker(num_blocks=200), policy=policy, pipeline_depth=depth)
    slow = harness.submit([9, 9, 9], 32)
    short = [harness.submit([i, i, i], 4) for i in range(7)]
    harness.run()
    assert harness.front_end.tokens[slow] == expected_tokens([9, 9, 9], 32)
    for i, handle in enumerate(short):
        assert harness.front_end.tokens[handle] == expected_tokens([i, i, i], 4)
    harness.assert_pool_is_whole()
    return harness, slow, short


def sampled(harness: Harness) -> int:
    return sum(int(plan.samples.sum()) for plan in harness.worker.log)


@pytest.mark.parametrize("return_together", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_seven_short_rows_behind_a_long_one_waste_196_of_256_tokens(
    depth: int, return_together: bool
) -> None:
    policy = StaticBatching(return_together=return_together)
    harness, _, _ = seven_behind_one(policy, depth)
    totals = harness.engine.totals
    assert len(harness.worker.log) == 32
    assert all(len(plan.rows) == 8 for plan in harness.worker.log)
    assert sampled(harness) == 8 * 32
    assert (totals.output_tokens, totals.discarded_tokens) == (7 * 4 + 32, 7 * 28)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_continuous_batching_wastes_nothing_on_the_same_requests(depth: int) -> None:
    harness, _, _ = seven_behind_one(ContinuousBatching(), depth)
    totals = harness.engine.totals
    assert sampled(harness) == 7 * 4 + 32
    assert (totals.output_tokens, totals.discarded_tokens) == (60, 0)
    assert [len(plan.rows) for plan in harness.worker.log] == [8] * 4 + [1] * 28


def test_a_row_at_its_limit_rewrites_its_last_slot() -> None:
    harness = static(FakeWorker(block_size=4))
    harness.submit([1, 2, 3], 3)
    harness.submit([7], 8)
    harness.run()
    plans = harness.worker.log
    # Prompt, then two tokens in the pool; the third needs no slot. From then on position 4.
    assert [plan.context_lens.tolist()[0] for plan in plans] == [3, 4, 5, 5, 5, 5, 5, 5]
    last_slots = {int(plan.slot_mapping[0]) for plan in plans[2:]}
    assert len(last_slots) == 1
    assert all(plan.query_lens.tolist() == [1, 1] for plan in plans[1:])
    assert all(plan.samples.all() for plan in plans)


def test_a_row_that_met_an_end_token_decodes_on_for_nobody() -> None:
    worker = FakeWorker()
    worker.script["r1"] = [20, 21, 22, 23, 24, 25, 26, 27]
    harness = static(worker)
    ended = harness.submit([1, 2], 6, stop_ids=frozenset({21}))
    harness.submit([3], 8)
    harness.run()
    end = harness.front_end.ends[ended]
    assert isinstance(end, Finish)
    assert (end.reason, end.stop_token, end.usage.output_tokens) == (FinishReason.STOP, 21, 2)
    assert harness.front_end.tokens[ended] == [20, 21]
    # To its limit of 6 tokens, then the last slot again.
    assert [plan.context_lens.tolist()[0] for plan in worker.log] == [2, 3, 4, 5, 6, 7, 7, 7]
    assert harness.engine.totals.discarded_tokens == 6


def test_steps_in_flight_when_an_end_token_ends_the_batch_are_wasted_too() -> None:
    worker = FakeWorker()
    worker.script["r1"] = [*range(20, 60)]
    harness = static(worker, depth=3)
    harness.submit([1, 2], 30, stop_ids=frozenset({24}))
    harness.submit([3], 2)
    harness.run()
    # 5 steps until the end token, and 2 behind it.
    assert len(worker.log) == 7
    assert harness.engine.totals.output_tokens == 5 + 2
    assert harness.engine.totals.discarded_tokens == 2 + 5
    harness.assert_pool_is_whole()


def test_nobody_joins_before_the_batch_is_wholly_done() -> None:
    harness = static(FakeWorker(max_rows=3))
    for i in range(7):
        harness.submit([i], 2 + 3 * (i % 2))
    harness.run()
    batches = [[new.request_id for new in plan.new_rows] for plan in harness.worker.log]
    assert [batch for batch in batches if batch] == [["r1", "r2", "r3"], ["r4", "r5", "r6"], ["r7"]]
    # 5 steps for each of the first two, whose slowest have 5 tokens; 2 for the last.
    assert [i for i, batch in enumerate(batches) if batch] == [0, 5, 10]
    assert len(batches) == 12


def test_a_batch_has_at_most_as_many_requests_as_asked_for() -> None:
    harness = static(batch=2)
    for i in range(5):
        harness.submit([i], 3)
    harness.run()
    assert [len(plan.rows) for plan in harness.worker.log] == [2] * 6 + [1] * 3


def test_blocks_are_reserved_to_each_rows_limit_and_only_as_many_admitted_as_fit() -> None:
    worker = FakeWorker(num_blocks=11, block_size=4)
    harness = static(worker)
    harness.submit([1, 2, 3], 14)  # 16 slots: 4 blocks
    harness.submit([4], 17)  # 17 slots: 5 blocks
    harness.submit([5], 5)  # 5 slots: 2 blocks, but 1 is left
    harness.submit([6], 4)  # 1 block; nobody passes the one before it
    harness.turn()
    assert harness.books.tables.num_blocks[harness.books.rows.live].tolist() == [4, 5]
    assert harness.books.allocator.num_free == 1
    assert worker.log[0].table_counts.tolist() == [4, 5]
    harness.run()
    grown = [plan.table_counts.tolist() for plan in worker.log]
    assert [counts for counts in grown if counts] == [[4, 5], [2, 1]]
    assert harness.engine.totals.preemptions == 0


def test_every_row_of_a_batch_is_in_every_step_while_long_prompts_are_computed_in_chunks() -> None:
    worker = FakeWorker(num_blocks=300, max_step_tokens=16, max_model_len=256)
    harness = static(worker)
    handles = [harness.submit(list(range(n)), 5) for n in (60, 3, 40)]
    harness.run()
    assert all(len(plan.rows) == 3 for plan in worker.log)
    assert all(plan.query_lens.sum() <= 16 for plan in worker.log)
    for handle, n in zip(handles, (60, 3, 40), strict=True):
        assert harness.front_end.tokens[handle] == expected_tokens(list(range(n)), 5)


def test_a_batch_that_is_not_full_starts_once_its_first_request_has_waited() -> None:
    harness = static(batch=3, wait=2.0)
    harness.submit([1], 2)
    harness.turn()
    assert harness.engine._wait == 2.0
    harness.now = 1.5
    harness.submit([2], 2)
    harness.turn()
    assert harness.worker.log == []
    assert harness.engine._wait == 0.5
    harness.now = 2.0
    harness.turn()
    assert harness.worker.step_requests == [["r1", "r2"]]


def test_a_full_batch_does_not_wait() -> None:
    harness = static(batch=2, wait=60.0)
    harness.submit([1], 2)
    harness.submit([2], 2)
    harness.turn()
    assert harness.worker.step_requests == [["r1", "r2"]]


def test_held_rows_are_in_a_snapshot_with_their_blocks() -> None:
    worker = FakeWorker(num_blocks=20)
    worker.script["r2"] = [*range(20, 30)]
    harness = static(worker)
    harness.submit([1], 20)
    harness.submit([2], 6, stop_ids=frozenset({22}))
    harness.turn()
    for _ in range(6):
        harness.step()
    assert harness.books.rows.held.tolist() == [False, True] + [False] * 6
    harness.engine.ask_snapshot(SnapshotRequest(1, block_map=True))
    harness.turn()
    (taken,) = harness.front_end.snapshots
    assert taken.request_ids == ["r1", "r2"]
    assert taken.output_tokens.tolist() == [6, 3], "the tokens after its end are not its own"
    assert taken.block_owners is not None
    assert [(taken.block_owners == owner).sum() for owner in (0, 1, FREE_BLOCK)] == [5, 2, 12]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": 0}, "static_batch is 0, must be at least 1"),
        ({"wait": -1.0}, "static_wait is -1, must be from 0 to 60 seconds"),
        ({"wait": float("nan")}, "static_wait is nan, must be from 0 to 60 seconds"),
        ({"wait": 61.0}, "static_wait is 61, must be from 0 to 60 seconds"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StaticBatching(**values)
