"""What requests find of each other, to the token. Blocks have 4 tokens."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.core.front_end import Failure, FailureKind, Finish
from scheduler.core.static_batching import StaticBatching
from scheduler.core.worker_link import NewRow
from tests.scheduler.core.fake_worker import FakeWorker, expected_tokens
from tests.scheduler.core.harness import Harness

PROMPT = [5, 3, 8, 1, 9, 2, 7, 4, 6, 11]


def admissions(harness: Harness, name: str) -> list[NewRow]:
    plans = harness.worker.log
    return [new for plan in plans for new in plan.new_rows if new.request_id == name]


def computed(harness: Harness, handle: int) -> int:
    """Tokens that steps computed of a request."""
    log = zip(harness.worker.log, harness.worker.step_requests, strict=True)
    return sum(
        length
        for plan, names in log
        for length, name in zip(plan.query_lens.tolist(), names, strict=True)
        if name == f"r{handle}"
    )


def known(harness: Harness, tokens: list[int]) -> int:
    """Full blocks of `tokens` that the cache knows of."""
    found: list[int] = []
    harness.books.sharing.cache.find(np.array([*tokens, 0], np.int32), found)
    return len(found)


def run_one(harness: Harness, prompt: list[int], count: int = 1) -> int:
    """Runs a request, looks at its output, and returns the tokens that it found."""
    handle = harness.submit(prompt, count)
    harness.run()
    assert harness.front_end.tokens[handle] == expected_tokens(prompt, count)
    end = harness.front_end.ends[handle]
    assert isinstance(end, Finish)
    (new,) = admissions(harness, f"r{handle}")
    assert new.tokens_in_pool == end.usage.cached_tokens
    assert 4 * len(new.block_ids) == new.tokens_in_pool
    assert computed(harness, handle) == len(prompt) + count - 1 - new.tokens_in_pool
    return end.usage.cached_tokens


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("chunk", [3, 64])
@pytest.mark.parametrize(("length", "found"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (10, 8)])
def test_a_prompt_that_comes_again_computes_what_is_not_in_full_blocks_and_its_last_token(
    length: int, found: int, chunk: int, depth: int
) -> None:
    harness = Harness(pipeline_depth=depth, max_step_tokens=chunk)
    prompt = PROMPT[:length]
    assert run_one(harness, prompt, 3) == 0
    assert [run_one(harness, prompt, count) for count in (3, 3, 1, 5)] == [found] * 4
    assert harness.engine.totals.prefix_queries == 5 * length
    assert harness.engine.totals.prefix_hits == 4 * found
    harness.assert_pool_is_whole()


def test_an_output_is_found_by_the_next_turn_of_its_conversation() -> None:
    harness = Harness()
    run_one(harness, PROMPT, 8)
    # The last token of an output is not computed, and so 17 are in the pool.
    heard = PROMPT + expected_tokens(PROMPT, 8)
    assert run_one(harness, [*heard, 1, 2, 3]) == 16
    assert run_one(harness, [*heard[:15], 50, 1, 2, 3]) == 12
    assert run_one(harness, heard[1:]) == 0


def test_with_the_cache_off_nothing_is_kept_and_nothing_found() -> None:
    harness = Harness(prefix_cache=False)
    assert [run_one(harness, PROMPT, 3) for _ in range(3)] == [0] * 3
    assert harness.books.allocator.num_cached == 0
    totals = harness.engine.totals
    assert (totals.prefix_queries, totals.prefix_hits) == (0, 0)


def test_a_block_is_found_only_once_the_step_that_writes_it_is_answered() -> None:
    harness = Harness(pipeline_depth=3, max_step_tokens=4)
    first = harness.submit(PROMPT, 1)
    harness.turn()  # its three chunks are in flight
    harness.submit(PROMPT, 1)  # waits for room in the window
    seen = [known(harness, PROMPT)]
    while first not in harness.front_end.ends:
        harness.step()
        seen.append(known(harness, PROMPT))
    assert seen == [0, 1, 2, 2]
    (new,) = admissions(harness, "r2")
    assert new.tokens_in_pool == 4, "what was answered when the second was planned"


def test_what_runs_is_shared_and_goes_on_when_the_one_that_computed_it_is_gone() -> None:
    harness = Harness(pipeline_depth=2)
    first = harness.submit(PROMPT, 30)
    for _ in range(4):
        harness.step()
    second = harness.submit([*PROMPT, 1, 2], 20)
    harness.step()
    shared = harness.books.tables.table(0)[:2]
    assert harness.books.tables.table(1)[:2].tolist() == shared.tolist()
    assert harness.books.allocator.references[shared].tolist() == [2, 2]
    harness.abort(first)
    harness.step()
    assert harness.books.allocator.references[shared].tolist() == [1, 1]
    harness.run()
    assert harness.front_end.tokens[second] == expected_tokens([*PROMPT, 1, 2], 20)
    harness.assert_pool_is_whole()


def test_requests_that_do_not_fit_side_by_side_do_where_they_share() -> None:
    """Two of 5 blocks each, 4 of them the same, in a pool of 7."""
    prompt = [7 * i % 50 for i in range(17)]
    for prefix_cache, together in ((False, 1), (True, 2)):
        worker = FakeWorker(num_blocks=8)
        harness = Harness(worker, pipeline_depth=1, prefix_cache=prefix_cache)
        run_one(harness, prompt)
        handles = [harness.submit([*prompt[:16], i], 3) for i in (1, 2)]
        harness.step()
        harness.step()
        assert harness.books.rows.num_live == together
        harness.run()
        for handle, i in zip(handles, (1, 2), strict=True):
            assert harness.front_end.tokens[handle] == expected_tokens([*prompt[:16], i], 3)


def test_one_cancelled_in_its_prompt_leaves_the_full_blocks_of_answered_steps() -> None:
    harness = Harness(pipeline_depth=2, max_step_tokens=6)
    handle = harness.submit([*PROMPT, *PROMPT, *PROMPT], 1)
    harness.turn()
    harness.step()  # 6 tokens are written, 12 more are in flight
    harness.abort(handle)
    harness.run()
    assert run_one(harness, [*PROMPT, *PROMPT, *PROMPT]) == 4


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    worker = FakeWorker(num_blocks=9)
    harness = Harness(worker, pipeline_depth=3)
    prompts = [[1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4]]
    handles = [harness.submit(prompt, 14) for prompt in prompts]
    harness.run()
    for handle, prompt in zip(handles, prompts, strict=True):
        assert harness.front_end.tokens[handle] == expected_tokens(prompt, 14)
    first, again = admissions(harness, "r2")
    assert (first.tokens_in_pool, again.tokens_in_pool) == (0, 12)
    usage = harness.front_end.ends[handles[1]].usage
    assert (usage.preemptions, usage.cached_tokens) == (1, 0)
    # Of those in flight when it lost its row, what was behind its third block.
    assert usage.recomputed_tokens == computed(harness, handles[1]) - (6 + 14 - 1) > 0
    assert harness.engine.totals.recomputed_tokens == usage.recomputed_tokens


def test_the_block_used_longest_ago_goes_first_and_the_end_of_a_request_before_its_beginning() -> (
    None
):
    harness = Harness(FakeWorker(num_blocks=9))  # 8 blocks
    a, b, c = ([i] * 13 for i in (1, 2, 3))
    assert [run_one(harness, prompt) for prompt in (a, b)] == [0, 0]
    assert harness.books.allocator.num_cached == 6
    assert run_one(harness, a) == 12
    # Three blocks for c besides the two free ones' place: b's end and middle go.
    assert run_one(harness, c) == 0
    assert run_one(harness, [*b[:4], 9]) == 4
    assert run_one(harness, a) == 12
    harness.assert_pool_is_whole()


def test_what_a_request_has_found_is_not_taken_by_the_same_step() -> None:
    """It finds 3 of the 4 blocks, and with its last token and an output needs all."""
    harness = Harness(FakeWorker(num_blocks=5))
    prompt = [4] * 13
    assert run_one(harness, prompt) == 0
    assert run_one(harness, prompt, 4) == 12
    # One that needs three others' places takes them, and is computed whole.
    assert run_one(harness, [6] * 13, 4) == 0
    assert run_one(harness, prompt, 4) == 0


def test_a_new_incarnation_of_the_worker_knows_nothing() -> None:
    harness = Harness(FakeWorker(max_rows=1))
    run_one(harness, PROMPT)
    waits = [harness.submit(PROMPT, 6) for _ in range(2)]
    harness.turn()
    harness.worker.restart()
    harness.run()
    for handle in waits:
        assert harness.front_end.tokens[handle] == expected_tokens(PROMPT, 6)
    first, again = admissions(harness, f"r{waits[0]}")
    assert (first.tokens_in_pool, again.tokens_in_pool) == (8, 0)
    assert [new.tokens_in_pool for new in admissions(harness, f"r{waits[1]}")] == [8]


def test_two_that_compute_the_same_at_once_leave_it_once_and_both_their_ends() -> None:
    harness = Harness(pipeline_depth=2)
    a, b = [*PROMPT[:8], 20, 21, 22, 23, 24], [*PROMPT[:8], 30, 31, 32, 33, 34]
    handles = [harness.submit(prompt, 1) for prompt in (a, b, PROMPT[:9])]
    harness.run()
    ends = [harness.front_end.ends[handle] for handle in handles]
    assert [end.usage.cached_tokens for end in ends if isinstance(end, Finish)] == [0] * 3
    assert harness.books.allocator.num_cached == 2 + 1 + 1
    assert [run_one(harness, prompt) for prompt in (a, b)] == [12, 12]


def test_the_end_of_one_that_runs_beside_its_twin_is_found_when_it_leaves() -> None:
    """The first in the batch is gone before the second has made its own block."""
    harness = Harness(FakeWorker(num_blocks=12), pipeline_depth=1)
    first = harness.submit(PROMPT, 1)
    second = harness.submit(PROMPT, 7)
    harness.run()
    assert {first, second} <= harness.front_end.ends.keys()
    heard = PROMPT + expected_tokens(PROMPT, 7)
    assert run_one(harness, [*heard, 1]) == 16
    # The last block goes before those of the twin that it builds on.
    taken = harness.books.allocator.allocate(harness.books.allocator.num_free - 3)
    assert known(harness, heard) == 3
    harness.books.allocator.release(taken)


def test_one_whose_numbers_are_not_finite_publishes_nothing_and_forgets_what_it_shared() -> None:
    harness = Harness(max_step_tokens=4)
    run_one(harness, PROMPT[:5])
    run_one(harness, [50] * 5)
    harness.worker.non_finite.add("r3")
    bad = harness.submit(PROMPT, 3)
    harness.run()
    end = harness.front_end.ends[bad]
    assert isinstance(end, Failure)
    assert (end.kind, end.usage.cached_tokens if end.usage else None) == (FailureKind.INTERNAL, 4)
    assert run_one(harness, PROMPT) == 0, "also what earlier steps had published"
    assert run_one(harness, PROMPT) == 8
    assert run_one(harness, [50] * 5) == 4
    harness.assert_pool_is_whole()


def test_one_that_shares_what_was_forgotten_goes_on_and_publishes_no_more() -> None:
    harness = Harness(FakeWorker(max_rows=2), pipeline_depth=1)
    run_one(harness, PROMPT[:9])
    shares = harness.submit(PROMPT, 12)
    harness.step()
    harness.worker.non_finite.add("r3")
    harness.submit(PROMPT[:9], 1)
    harness.run()
    assert harness.front_end.tokens[shares] == expected_tokens(PROMPT, 12)
    assert harness.books.allocator.num_cached == 0
    assert run_one(harness, PROMPT) == 0


def test_a_late_number_that_is_not_finite_forgets_what_a_waiting_request_had_published() -> None:
    worker = FakeWorker(num_blocks=9)
    harness = Harness(worker, pipeline_depth=3)
    for i in range(2):
        harness.submit([i] * 6, 14)
    while not harness.books.waiting:
        harness.step()
    assert harness.books.waiting[0].unanswered > 0
    late = next(answer for answer in worker.unanswered if len(answer.tokens) == 2)
    object.__setattr__(late, "non_finite", np.array([False, True]))
    harness.run()
    end = harness.front_end.ends[2]
    assert isinstance(end, Failure)
    assert run_one(harness, [1] * 6) == 0
    assert run_one(harness, [0] * 6) == 4


def test_a_static_batch_finds_what_the_one_before_it_computed() -> None:
    harness = Harness(policy=StaticBatching(batch=2), pipeline_depth=2)
    handles = [harness.submit([*PROMPT, i], count) for i, count in ((1, 3), (2, 9), (3, 2), (4, 6))]
    harness.run()
    for handle, (i, count) in zip(handles, ((1, 3), (2, 9), (3, 2), (4, 6)), strict=True):
        assert harness.front_end.tokens[handle] == expected_tokens([*PROMPT, i], count)
    ends = [harness.front_end.ends[handle] for handle in handles]
    assert [end.usage.cached_tokens for end in ends if isinstance(end, Finish)] == [0, 0, 8, 8]
    harness.assert_pool_is_whole()


def test_a_row_that_rewrites_its_last_slot_does_not_publish_that_block() -> None:
    """11 tokens and 2 more fill 3 blocks with 12 slots; the last one is rewritten."""
    for policy, found in ((None, 12), (StaticBatching(), 8)):
        harness = Harness(policy=policy)
        short = harness.submit([*PROMPT, 7], 2)
        harness.submit([1], 9)
        harness.run()
        heard = [*PROMPT, 7, *harness.front_end.tokens[short]]
        assert run_one(harness, [*heard, 1, 2]) == found


def test_what_a_row_computes_for_nobody_is_not_published() -> None:
    worker = FakeWorker()
    worker.script["r1"] = [*range(20, 60)]
    harness = Harness(worker, policy=StaticBatching())
    harness.submit([1, 2, 3], 30, stop_ids=frozenset({22}))
    harness.submit([9], 25)
    harness.run()
    assert harness.engine.totals.discarded_tokens > 20
    assert known(harness, [1, 2, 3, 20, 21, 22]) == 1
    published = harness.books.allocator.num_cached
    assert published == 1 + known(harness, [9, *harness.front_end.tokens[2]])


def test_tokens_after_an_end_token_are_not_found() -> None:
    worker = FakeWorker()
    worker.script["r1"] = [*range(20, 60)]
    harness = Harness(worker, pipeline_depth=3)
    harness.submit([1, 2, 3], 30, stop_ids=frozenset({22}))
    harness.run()
    # Steps in flight have computed some of what would have come behind the end token.
    assert [known(harness, [1, 2, 3, *range(20, end)]) for end in (21, 23, 25, 40)] == [1] * 4
