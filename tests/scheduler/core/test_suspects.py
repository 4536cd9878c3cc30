"""A request that crashes the worker fails alone, and takes nobody with it."""

from __future__ import annotations

import pytest

from scheduler.core.front_end import Failure, FailureKind, Finish
from scheduler.core.worker_link import StepRefused
from tests.scheduler.core.fake_worker import FakeWorker, expected_tokens
from tests.scheduler.core.harness import Harness


def run_with_poison(harness: Harness, poison: set[str], limit: int = 2000) -> int:
    """Until all have ended; the worker crashes in each step that computes a poisonous request.
    Returns the crashes."""
    worker, crashes = harness.worker, 0
    for _ in range(limit):
        harness.turn()
        if not worker.unanswered:
            if not harness.books.num_requests:
                return crashes
            continue
        oldest = len(worker.step_requests) - len(worker.unanswered)
        if poison.intersection(worker.step_requests[oldest]):
            crashes += 1
            worker.restart()
        else:
            worker.answer()
    raise AssertionError("the engine did not come to rest")


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("budget", [4, 64])
def test_one_poisonous_request_fails_and_every_other_gets_its_tokens(
    depth: int, budget: int
) -> None:
    worker = FakeWorker(max_rows=4, max_step_tokens=budget, num_blocks=24)
    harness = Harness(worker, pipeline_depth=depth)
    prompts = [[i, *range(i)] for i in range(1, 9)]
    handles = [harness.submit(prompt, 6) for prompt in prompts]
    crashes = run_with_poison(harness, {"r3"})
    end = harness.front_end.ends[handles[2]]
    assert isinstance(end, Failure)
    assert end.kind is FailureKind.INTERNAL
    assert "r3" in end.message
    assert "the worker ended 3 times in a row" in end.message
    for handle, prompt in zip(handles, prompts, strict=True):
        if handle != handles[2]:
            assert harness.front_end.tokens[handle] == expected_tokens(prompt, 6)
    assert crashes == 3
    harness.assert_pool_is_whole()


def test_a_request_that_turns_poisonous_late_is_found_too() -> None:
    """It crashes the worker once it has made five tokens: a recompute runs in chunks, and an
    answered chunk clears nobody."""
    worker = FakeWorker(max_rows=4, max_step_tokens=4, max_model_len=64)
    harness = Harness(worker, pipeline_depth=2)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 9]]
    handles = [harness.submit(prompt, 12) for prompt in prompts]
    while len(harness.front_end.tokens[handles[1]]) < 5:
        harness.turn()
        worker.answer()
        harness.turn()
    tokens = {handle: list(harness.front_end.tokens[handle]) for handle in handles}
    crashes = 0
    for _ in range(500):
        harness.turn()
        if not worker.unanswered:
            break
        plan = worker.log[len(worker.log) - len(worker.unanswered)]
        names = worker.step_requests[len(worker.step_requests) - len(worker.unanswered)]
        at = names.index("r2") if "r2" in names else None
        if at is not None and plan.context_lens[at] > 5 + 5 - 1:
            crashes += 1
            worker.restart()
        else:
            worker.answer()
    assert crashes == 3
    end = harness.front_end.ends[handles[1]]
    assert isinstance(end, Failure)
    assert end.kind is FailureKind.INTERNAL
    for handle, prompt in ((handles[0], prompts[0]), (handles[2], prompts[2])):
        assert harness.front_end.tokens[handle][: len(tokens[handle])] == tokens[handle]
        assert harness.front_end.tokens[handle] == expected_tokens(prompt, 12)


def test_suspects_run_alone_until_each_has_made_a_token() -> None:
    harness = Harness(FakeWorker(max_rows=4), pipeline_depth=3)
    handles = [harness.submit([i, i], 5) for i in range(4)]
    harness.turn()
    for _ in range(2):
        harness.worker.restart()
        harness.turn()
    after = len(harness.worker.step_requests)
    harness.run()
    steps = harness.worker.step_requests[after - 1 :]
    assert steps[:4] == [["r1"], ["r2"], ["r3"], ["r4"]]
    assert steps[4] == ["r1", "r2", "r3", "r4"]
    for i, handle in enumerate(handles):
        assert harness.front_end.tokens[handle] == expected_tokens([i, i], 5)


def test_one_crash_makes_nobody_a_suspect() -> None:
    harness = Harness(FakeWorker(max_rows=4))
    for i in range(4):
        harness.submit([i, i], 5)
    harness.turn()
    harness.worker.restart()
    harness.turn()
    assert harness.worker.step_requests[-1] == ["r1", "r2", "r3", "r4"]


def test_crashes_with_a_token_in_between_make_nobody_a_suspect() -> None:
    harness = Harness(FakeWorker(max_rows=2), pipeline_depth=1)
    handles = [harness.submit([i], 20) for i in range(2)]
    for _ in range(6):
        harness.turn()
        harness.step()
        harness.worker.restart()
    harness.turn()
    assert harness.worker.step_requests[-1] == ["r1", "r2"]
    harness.run()
    assert all(isinstance(harness.front_end.ends[handle], Finish) for handle in handles)


def test_a_suspect_in_a_full_pool_takes_the_blocks_of_those_that_pause() -> None:
    """Eight usable blocks of 4: three requests of 12 tokens need nine."""
    worker = FakeWorker(num_blocks=9, block_size=4, max_rows=3)
    harness = Harness(worker, pipeline_depth=2)
    prompts = [[i] * 10 for i in range(3)]
    handles = [harness.submit(prompt, 3) for prompt in prompts]
    harness.turn()
    for _ in range(2):
        worker.restart()
        harness.turn()
    harness.run()
    for handle, prompt in zip(handles, prompts, strict=True):
        assert harness.front_end.tokens[handle] == expected_tokens(prompt, 3)
    harness.assert_pool_is_whole()


def test_a_suspect_that_is_cancelled_makes_way_for_the_next() -> None:
    harness = Harness(FakeWorker(max_rows=4), pipeline_depth=2)
    handles = [harness.submit([i, i], 4) for i in range(3)]
    harness.turn()
    for _ in range(2):
        harness.worker.restart()
        harness.turn()
    harness.abort(handles[0])
    harness.run()
    assert harness.front_end.ends[handles[0]].kind is FailureKind.CANCELLED
    for i in (1, 2):
        assert harness.front_end.tokens[handles[i]] == expected_tokens([i, i], 4)


def test_a_refused_step_makes_nobody_but_the_named_request_pay() -> None:
    harness = Harness(FakeWorker(max_rows=4), pipeline_depth=1)
    handles = [harness.submit([i, i], 4) for i in range(3)]
    for name in ("r1", "r2"):
        harness.turn()
        step = harness.worker.log[-1].step_id
        harness.engine.post(StepRefused(step, "bad", request_id=name))
        harness.worker.restart()
    harness.turn()
    assert harness.worker.step_requests[-1] == ["r3"]
    harness.run()
    assert harness.front_end.tokens[handles[2]] == expected_tokens([2, 2], 4)
