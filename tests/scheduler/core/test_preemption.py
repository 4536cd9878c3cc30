import pytest

from scheduler.core.front_end import Failure, FailureKind, Finish, FinishReason
from scheduler.core.penalties import NO_PENALTIES, Penalties
from tests.scheduler.core.fake_worker import FakeWorker, expected_logprobs, expected_tokens
from tests.scheduler.core.harness import Harness


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("chunk", [3, 64])
@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("penalties", [NO_PENALTIES, Penalties(1.3, 0.5, -0.25)])
def test_preempted_output_equals_never_preempted_output(
    depth: int, chunk: int, block_size: int, prefix_cache: bool, penalties: Penalties
) -> None:
    """Two requests of 5 blocks each in a pool of 8, with log-probabilities."""
    slots = 32
    worker = FakeWorker(num_blocks=1 + slots // block_size, block_size=block_size)
    harness = Harness(
        worker, pipeline_depth=depth, max_step_tokens=chunk, prefix_cache=prefix_cache
    )
    prompts = [[1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4]]
    handles = [
        harness.submit(prompt, 14, seed=seed, penalties=penalties)
        for seed, prompt in enumerate(prompts, start=41)
    ]
    harness.run()
    for seed, (handle, prompt) in enumerate(zip(handles, prompts, strict=True), start=41):
        assert harness.front_end.tokens[handle] == expected_tokens(prompt, 14, seed, penalties)
    assert harness.front_end.num_logprobs == 2 * 14
    ends = [harness.front_end.ends[handle] for handle in handles]
    assert [end.reason for end in ends if isinstance(end, Finish)] == [FinishReason.LENGTH] * 2
    assert harness.engine.totals.preemptions >= 1
    assert ends[0].usage.preemptions == 0, "the older one is never the victim"
    assert ends[1].usage.preemptions == harness.engine.totals.preemptions
    harness.assert_pool_is_whole()


def test_the_youngest_is_preempted_first_and_they_come_back_in_order() -> None:
    harness = Harness(FakeWorker(num_blocks=7, block_size=4, max_rows=3), pipeline_depth=1)
    for i in range(3):
        harness.submit([i, i + 1, i + 2, i + 3], 12)
    harness.run()
    admissions = [new.request_id for plan in harness.worker.log for new in plan.new_rows]
    assert admissions == ["r1", "r2", "r3", "r2", "r3"]


def test_a_preempted_requests_tokens_in_flight_are_its_own() -> None:
    """It is admitted again only once they are answered, with them among its tokens."""
    harness = Harness(FakeWorker(num_blocks=9, block_size=4), pipeline_depth=3)
    for i in range(2):
        harness.submit([i] * 6, 14)
    while not harness.books.waiting:
        harness.step()
    waiting = harness.books.waiting[0]
    assert waiting.unanswered > 0
    known = len(waiting.tokens) + waiting.unanswered
    while harness.books.waiting:
        assert waiting.row == -1
        harness.step()
    admissions = [new for plan in harness.worker.log for new in plan.new_rows]
    resumed = [new for new in admissions if new.request_id == "r2"][1]
    assert len(resumed.token_ids) == known
    assert resumed.prompt_len == 6


def test_an_end_token_in_flight_finishes_a_preempted_request_while_it_waits() -> None:
    worker = FakeWorker(num_blocks=9, block_size=4)
    harness = Harness(worker, pipeline_depth=3)
    worker.script["r2"] = [*range(20, 40)]
    harness.submit([0] * 6, 14)
    second = harness.submit([1] * 6, 14, stop_ids=frozenset({0}))
    while not harness.books.waiting:
        harness.step()
    in_flight = [answer for answer in worker.unanswered if len(answer.tokens) == 2]
    in_flight[0].tokens[1] = 0
    before = [1] * 6 + harness.front_end.tokens[second]
    logprobs = in_flight[0].logprobs
    assert logprobs is not None
    logprobs.ids[1:], logprobs.values[1:] = expected_logprobs(before, 0, top=1)
    harness.run()
    end = harness.front_end.ends[second]
    assert isinstance(end, Finish)
    assert (end.reason, end.stop_token) == (FinishReason.STOP, 0)
    assert harness.front_end.tokens[second][-1] == 0
    admissions = [new.request_id for plan in worker.log for new in plan.new_rows]
    assert admissions.count("r2") == 1


def test_a_preempted_request_that_is_aborted_ends_once_and_gets_no_token_in_flight() -> None:
    harness = Harness(FakeWorker(num_blocks=9, block_size=4), pipeline_depth=3)
    first, second = (harness.submit([i] * 6, 14) for i in range(2))
    while not harness.books.waiting:
        harness.step()
    assert harness.books.waiting[0].unanswered > 0
    made = list(harness.front_end.tokens[second])
    harness.abort(second)
    harness.abort(second)
    harness.run()
    end = harness.front_end.ends[second]
    assert isinstance(end, Failure)
    assert end.kind is FailureKind.CANCELLED
    assert harness.front_end.tokens[second] == made
    assert harness.front_end.tokens[first] == expected_tokens([0] * 6, 14)
    admissions = [new.request_id for plan in harness.worker.log for new in plan.new_rows]
    assert admissions == ["r1", "r2"]
    harness.assert_pool_is_whole()


def test_a_finishing_request_is_not_planned_and_keeps_its_blocks_until_answered() -> None:
    harness = Harness(FakeWorker(num_blocks=20), pipeline_depth=3)
    harness.submit([1, 2, 3, 4], 2)
    harness.submit([5, 6], 20)
    harness.turn()
    rows = harness.books.rows
    assert rows.finishing.sum() == 1
    row = int(rows.finishing.argmax())
    assert harness.books.tables.num_blocks[row] == 2
    assert [len(names) for names in harness.worker.step_requests] == [2, 2, 1]
    harness.step()
    assert rows.finishing.sum() == 1
    harness.step()
    assert not rows.finishing.any()
    assert harness.books.tables.num_blocks[row] == 0
