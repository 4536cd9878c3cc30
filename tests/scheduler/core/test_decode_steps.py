"""How often a step repeats its decodes, and what becomes of the repetitions."""

import numpy as np
import pytest

from scheduler.core.config import EngineConfig
from scheduler.core.front_end import Failure, FailureKind, Finish, FinishReason
from scheduler.core.inquest import Inquest
from scheduler.core.static_batching import StaticBatching
from scheduler.core.worker_link import StepRefused
from tests.scheduler.core.fake_worker import FakeWorker, expected_tokens
from tests.scheduler.core.harness import Harness


def repeated(harness: Harness) -> list[int]:
    """decode_steps of every step so far."""
    return [plan.decode_steps for plan in harness.worker.log]


def until(harness: Harness, decode_steps: int) -> None:
    """Until the newest step is one of so many repetitions."""
    while repeated(harness)[-1:] != [decode_steps]:
        harness.step()


def test_a_step_is_repeated_up_to_the_bound_once_its_cost_is_known_and_never_past_a_length() -> (
    None
):
    harness = Harness(pipeline_depth=1, decode_steps=4)
    handle = harness.submit([1, 2, 3], 12)
    harness.run()
    # The prompt, one decode that shows what one costs, and the ten tokens left.
    assert repeated(harness) == [1, 1, 4, 4, 2]
    assert harness.front_end.tokens[handle] == expected_tokens([1, 2, 3], 12)
    assert harness.engine.totals.discarded_tokens == 0
    assert harness.engine.totals.steps == 5


def test_the_row_that_is_nearest_to_its_length_bounds_the_step() -> None:
    harness = Harness(pipeline_depth=1, decode_steps=8)
    short, long = harness.submit([1, 2], 5), harness.submit([3, 4], 20)
    harness.run()
    assert repeated(harness) == [1, 1, 3, 1, 8, 6]
    assert [len(names) for names in harness.worker.step_requests] == [2, 2, 2, 1, 1, 1]
    assert harness.front_end.tokens[short] == expected_tokens([1, 2], 5)
    assert harness.front_end.tokens[long] == expected_tokens([3, 4], 20)


def test_without_the_flag_every_step_decodes_once() -> None:
    harness = Harness(pipeline_depth=2)
    harness.submit([1, 2, 3], 12)
    harness.run()
    assert repeated(harness) == [1] * 12


def test_a_step_with_a_chunk_of_a_prompt_in_it_is_not_repeated() -> None:
    harness = Harness(pipeline_depth=1, decode_steps=4, max_step_tokens=8)
    first = harness.submit([1, 2, 3], 30)
    until(harness, 4)
    second = harness.submit(list(range(40)), 2)
    before = len(harness.worker.log)
    harness.run()
    chunked = [(plan.query_lens > 1).any() for plan in harness.worker.log[before:]]
    assert sum(chunked) == 6
    counts = repeated(harness)[before:]
    assert counts == [1] * 6 + [1, 4, 4, 4, 4, 1]
    assert harness.front_end.tokens[first] == expected_tokens([1, 2, 3], 30)
    assert harness.front_end.tokens[second] == expected_tokens(list(range(40)), 2)


def test_those_who_wait_without_a_chance_do_not_hold_repetitions_back() -> None:
    harness = Harness(FakeWorker(max_rows=1), pipeline_depth=1, decode_steps=4)
    harness.submit([1, 2, 3], 10)
    late = harness.submit([4], 10)
    harness.run()
    assert repeated(harness) == [1, 1, 4, 4, 1, 4, 4, 1]
    assert harness.front_end.tokens[late] == expected_tokens([4], 10)


def test_an_arrival_is_in_the_very_next_step() -> None:
    harness = Harness(pipeline_depth=1, decode_steps=8)
    harness.submit([1, 2, 3], 60)
    until(harness, 8)
    harness.submit([4, 5], 4, name="late")
    for _ in range(8):
        harness.step()
    assert harness.worker.step_requests[-1] == ["r1", "late"]
    assert repeated(harness)[-2:] == [8, 1]


def test_the_tokens_of_all_repetitions_are_within_the_steps_budget() -> None:
    harness = Harness(pipeline_depth=1, decode_steps=8, max_step_tokens=8)
    for i in range(3):
        harness.submit([i], 20)
    harness.run()
    assert repeated(harness) == [1, *[2] * 9, 1]
    assert {len(names) for names in harness.worker.step_requests} == {3}


def test_fewer_repetitions_come_before_a_preemption() -> None:
    """Two rows in a pool of 21 blocks of one token."""
    worker = FakeWorker(num_blocks=1 + 21, block_size=1)
    harness = Harness(worker, pipeline_depth=1, decode_steps=4, prefix_cache=False)
    first, second = harness.submit([1, 2, 3], 14), harness.submit([4, 5, 6], 14)
    while not harness.engine.totals.preemptions:
        harness.step()
    together = [plan.decode_steps for plan in worker.log if len(plan.rows) == 2]
    # 6 blocks for the prompts, then 2, then 8; 5 are left, for two tokens of each.
    assert together == [1, 1, 4, 2]
    # The one that is left goes on alone, in a step of a size never seen.
    assert harness.books.allocator.num_free == 21 - 10 - 1
    harness.run()
    assert harness.front_end.tokens[first] == expected_tokens([1, 2, 3], 14)
    assert harness.front_end.tokens[second] == expected_tokens([4, 5, 6], 14)
    harness.assert_pool_is_whole()


def test_blocks_of_all_repetitions_are_appended_with_the_step_and_slots_go_by_repetition() -> None:
    worker = FakeWorker(block_size=2)
    harness = Harness(worker, pipeline_depth=1, decode_steps=4)
    harness.submit([1, 2], 9)
    harness.submit([3, 4], 9)
    until(harness, 4)
    plan = worker.log[-1]
    assert plan.context_lens.tolist() == [4, 4]
    assert plan.query_lens.tolist() == [1, 1]
    assert plan.table_counts.tolist() == [2, 2]
    tables = [harness.books.tables.table(row) for row in plan.rows]
    wanted = [[int(table[p // 2]) * 2 + p % 2 for table in tables] for p in (3, 4, 5, 6)]
    assert plan.slot_mapping.reshape(4, 2).tolist() == wanted


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("decode_steps", [2, 4, 8])
def test_an_end_token_wastes_at_most_what_is_in_flight_behind_it(
    depth: int, decode_steps: int
) -> None:
    for place in range(20, 20 + decode_steps):
        worker = FakeWorker()
        harness = Harness(worker, pipeline_depth=depth, decode_steps=decode_steps)
        worker.script["r1"] = [*[50] * (place - 1), 2, *[90] * 100]
        handle = harness.submit([5, 6, 7], 100, stop_ids=frozenset({2}))
        harness.run()
        assert harness.front_end.tokens[handle] == [*[50] * (place - 1), 2]
        # Place 1 is the prompt's; the first `depth` decodes are single.
        within = (place - 1 - depth) % decode_steps or decode_steps
        wasted = depth * decode_steps - within
        assert harness.engine.totals.discarded_tokens == wasted
        assert wasted <= depth * decode_steps - 1
        harness.assert_pool_is_whole()


@pytest.mark.parametrize("depth", [1, 3])
def test_a_cancel_amid_repetitions_frees_with_the_next_step_and_what_follows_is_counted(
    depth: int,
) -> None:
    harness = Harness(pipeline_depth=depth, decode_steps=4)
    gone, stays = harness.submit([1, 2], 60), harness.submit([3, 4], 60)
    while len(repeated(harness)) < 8:
        harness.step()
    while harness.worker.unanswered[0].sub_step != 2:
        harness.step()
    row = harness.books.by_handle[gone].row
    in_flight = len(harness.worker.unanswered)
    made = list(harness.front_end.tokens[gone])
    sent = len(harness.worker.log)
    harness.abort(gone)
    harness.turn()
    assert harness.books.tables.num_blocks[row] == 0
    while len(harness.worker.log) == sent:
        harness.step()
    assert harness.worker.log[sent].free_rows.tolist() == [row]
    assert harness.worker.step_requests[sent] == ["r2"]
    harness.run()
    assert harness.front_end.tokens[gone] == made
    assert harness.engine.totals.discarded_tokens == in_flight == (depth - 1) * 4 + 2
    assert harness.front_end.tokens[stays] == expected_tokens([3, 4], 60)
    harness.assert_pool_is_whole()


def test_a_cancel_wastes_at_most_a_whole_window() -> None:
    harness = Harness(pipeline_depth=3, decode_steps=4)
    handle = harness.submit([1, 2], 60)
    while len(harness.worker.unanswered) < 3 * 4:
        harness.step()
    harness.abort(handle)
    harness.run()
    assert harness.engine.totals.discarded_tokens == 3 * 4
    harness.assert_pool_is_whole()


def test_a_stop_string_found_amid_repetitions_sets_the_usage_and_the_rest_is_discarded() -> None:
    harness = Harness(pipeline_depth=2, decode_steps=4)
    handle = harness.submit([1, 2], 60)
    while len(harness.front_end.tokens[handle]) < 11:
        harness.step()
    in_flight = len(harness.worker.unanswered)
    harness.abort(handle, FinishReason.STOP, output_tokens=8)
    harness.run()
    end = harness.front_end.ends[handle]
    assert isinstance(end, Finish)
    assert end.usage.output_tokens == 8
    assert harness.engine.totals.output_tokens == 8
    assert harness.engine.totals.discarded_tokens == 3 + in_flight


def test_answered_repetitions_of_a_lost_worker_count_and_the_rest_is_computed_again() -> None:
    harness = Harness(pipeline_depth=1, decode_steps=4)
    handle = harness.submit([1, 2, 3], 12)
    until(harness, 4)
    harness.step()
    harness.step()
    known = len(harness.front_end.tokens[handle])
    before = len(harness.worker.log)
    harness.worker.restart()
    harness.turn()
    (new,) = harness.worker.log[before].new_rows
    assert new.token_ids.tolist() == [1, 2, 3, *expected_tokens([1, 2, 3], known)]
    assert known == 4
    harness.run()
    assert harness.front_end.tokens[handle] == expected_tokens([1, 2, 3], 12)
    assert harness.engine.totals.discarded_tokens == 0


def test_a_refusal_amid_repetitions_ends_the_one_at_fault_with_the_tokens_answered() -> None:
    harness = Harness(pipeline_depth=1, decode_steps=4)
    good, bad = harness.submit([1, 2], 12), harness.submit([3, 4], 12)
    until(harness, 4)
    harness.step()
    step = harness.worker.log[-1].step_id
    harness.engine.post(StepRefused(step, "slot 3 is the scratch block's", sequence=1))
    harness.worker.restart()
    harness.run()
    end = harness.front_end.ends[bad]
    assert isinstance(end, Failure)
    assert end.kind is FailureKind.INTERNAL
    assert harness.front_end.tokens[bad] == expected_tokens([3, 4], 3)
    assert harness.front_end.tokens[good] == expected_tokens([1, 2], 12)
    harness.assert_pool_is_whole()


def test_an_answer_to_another_repetition_than_the_next_ends_the_loop() -> None:
    harness = Harness(pipeline_depth=1, decode_steps=4)
    harness.submit([1, 2], 12)
    until(harness, 4)
    stale = harness.worker.unanswered[0]
    harness.step()
    harness.engine.post(stale)
    with pytest.raises(ValueError, match=r"sub_step 0 of step \d was answered where 1 was next"):
        harness.turn()


def test_a_suspect_makes_one_token_at_a_time() -> None:
    harness = Harness(pipeline_depth=3, decode_steps=4)
    handle = harness.submit([1, 2, 3], 30)
    until(harness, 4)
    for _ in range(2):
        harness.worker.restart()
        harness.turn()
    harness.step()
    assert harness.books.by_handle[handle].suspicion.losses == 2
    cleared = len(harness.front_end.tokens[handle]) + 1
    alone = len(harness.worker.log)
    while len(harness.front_end.tokens[handle]) < cleared:
        assert harness.worker.num_unanswered == 1
        harness.step()
    assert repeated(harness)[alone - 1] == 1
    harness.run()
    assert harness.front_end.tokens[handle] == expected_tokens([1, 2, 3], 30)


@pytest.mark.parametrize("answered", [0, 1])
def test_the_place_of_a_loss_is_in_the_repetitions_that_are_not_answered(answered: int) -> None:
    harness = Harness(pipeline_depth=1, decode_steps=4)
    handle = harness.submit([1, 2, 3], 30)
    until(harness, 4)
    first = int(harness.worker.log[-1].context_lens[0]) - 1
    for _ in range(answered):
        harness.step()
    request = harness.books.by_handle[handle]
    request.tokens = harness.books.rows.tokens[0, : first + 1 + answered].copy()
    request.suspicion.losses, request.suspicion.tokens = 2, len(request.tokens)
    assert harness.engine.worker is not None
    Inquest().hold(harness.engine.worker.window)
    assert request.suspicion.place == range(first + answered, first + 4)


def test_a_block_can_be_found_once_the_repetition_that_fills_it_is_answered() -> None:
    harness = Harness(FakeWorker(block_size=2), pipeline_depth=1, decode_steps=4)
    harness.submit([1, 2], 20)
    until(harness, 4)
    sharing, worker = harness.books.sharing, harness.worker
    first = int(worker.log[-1].context_lens[0])
    found = []
    for _ in range(4):
        found.append(int(sharing.published[0]))
        harness.step()
    assert first == 4
    assert found == [1, 2, 2, 3]
    assert sharing.published[0] == 3


def test_a_static_batch_is_repeated_until_its_shortest_row_is_at_its_length() -> None:
    harness = Harness(policy=StaticBatching(), pipeline_depth=1, decode_steps=4)
    short, long = harness.submit([1, 2], 7), harness.submit([3, 4], 12)
    harness.run()
    assert repeated(harness) == [1, 1, 4, 1, 1, 1, 1, 1, 1]
    assert harness.front_end.tokens[short] == expected_tokens([1, 2], 7)
    assert harness.front_end.tokens[long] == expected_tokens([3, 4], 12)


def test_the_workers_limit_bounds_the_flag_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness(FakeWorker(max_decode_steps=3), pipeline_depth=1, decode_steps=16)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warnings == ["decode_steps is 16, lowered to 3 by the worker's limit"]
    harness.submit([1, 2], 20)
    harness.run()
    assert max(repeated(harness)) == 3


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="decode_steps is 0, must be at least 1"):
        EngineConfig(decode_steps=0)


def test_a_step_counts_once_with_the_tokens_and_the_time_of_all_its_repetitions() -> None:
    harness = Harness(pipeline_depth=1, decode_steps=4)
    harness.submit([1, 2, 3], 12)
    harness.run()
    assert repeated(harness) == [1, 1, 4, 4, 2]
    statistics = harness.engine.statistics
    assert harness.engine.status().steps == statistics.steps.tokens.count == 5
    assert statistics.steps.rows.sum == 5
    assert statistics.steps.tokens.sum == 3 + 1 + 4 + 4 + 2
    # The fake worker tells 1 us of each repetition.
    assert statistics.steps.device.sum == pytest.approx(12e-6)
    assert np.array(repeated(harness)).sum() == harness.engine.totals.output_tokens == 12
