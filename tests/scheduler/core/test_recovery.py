import numpy as np
import pytest

from scheduler.core.front_end import Failure, FailureKind, Finish
from scheduler.core.worker_link import Disconnected, StepAnswer, StepRefused, StepTimes
from tests.scheduler.core.fake_worker import FakeWorker, expected_tokens
from tests.scheduler.core.harness import Harness


def test_before_the_first_worker_calls_are_unavailable_with_the_reason() -> None:
    harness = Harness(connect=False)
    handle = harness.submit([1], 2)
    harness.turn()
    end = harness.front_end.ends[handle]
    assert isinstance(end, Failure)
    assert (end.kind, end.message) == (FailureKind.UNAVAILABLE, "no worker has connected yet")
    assert not harness.engine.status().ready


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8])
def test_a_new_incarnation_recomputes_every_request_in_order(depth: int, steps: int) -> None:
    harness = Harness(FakeWorker(max_rows=3), pipeline_depth=depth)
    prompts = [[i, *range(3 * i)] for i in range(1, 6)]
    handles = [harness.submit(prompt, 12) for prompt in prompts]
    harness.turn()
    for _ in range(steps):
        harness.step()
    running = harness.books.rows.num_live
    harness.engine.post(Disconnected("killed"))
    harness.turn()
    assert not harness.engine.status().ready
    assert "killed" in harness.engine.status().reason
    before = len(harness.worker.log)
    harness.worker.restart()
    harness.turn()
    assert harness.engine.status().ready
    assert harness.worker.log[before].step_id == 1
    harness.run()
    admissions = [new.request_id for plan in harness.worker.log[before:] for new in plan.new_rows]
    assert admissions == sorted(admissions)
    for handle, prompt in zip(handles, prompts, strict=True):
        assert harness.front_end.tokens[handle] == expected_tokens(prompt, 12)
    ends = [harness.front_end.ends[handle] for handle in handles]
    assert sum(end.usage.preemptions for end in ends if isinstance(end, Finish)) == running
    harness.assert_pool_is_whole()


def test_a_resumed_stream_loses_and_repeats_nothing() -> None:
    harness = Harness(pipeline_depth=3)
    handle = harness.submit([1, 2, 3], 12)
    harness.turn()
    harness.step()
    harness.engine.post(Disconnected("cut"))
    harness.turn()
    harness.worker.connect(resumed=True)
    harness.run()
    assert harness.front_end.tokens[handle] == expected_tokens([1, 2, 3], 12)
    assert harness.engine.totals.preemptions == 0


def test_a_request_that_a_smaller_pool_cannot_hold_fails_and_the_others_go_on() -> None:
    harness = Harness(FakeWorker(num_blocks=40, block_size=4))
    large = harness.submit(list(range(40)), 20)
    open_end = harness.submit([4, 4], None)
    small = harness.submit([5, 5], 6)
    harness.turn()
    harness.step()
    harness.worker.restart(num_blocks=8)
    harness.run()
    end = harness.front_end.ends[large]
    assert isinstance(end, Failure)
    assert end.kind is FailureKind.NO_ROOM
    assert "60 tokens" in end.message
    assert "29" in end.message
    assert harness.front_end.tokens[small] == expected_tokens([5, 5], 6)
    assert harness.front_end.tokens[open_end] == expected_tokens([4, 4], 27)


def test_a_refused_step_fails_the_named_request_alone() -> None:
    harness = Harness(pipeline_depth=2)
    good = harness.submit([1, 2, 3], 8)
    bad = harness.submit([4, 5], 8)
    harness.turn()
    step = harness.worker.log[-1].step_id
    harness.engine.post(StepRefused(step, "slot 3 is the scratch block's", sequence=1))
    harness.worker.restart()
    harness.run()
    end = harness.front_end.ends[bad]
    assert isinstance(end, Failure)
    assert end.kind is FailureKind.INTERNAL
    assert "slot 3" in end.message
    assert harness.front_end.tokens[good] == expected_tokens([1, 2, 3], 8)


def test_a_refusal_that_names_a_request_and_no_sequence_ends_that_request() -> None:
    harness = Harness()
    good = harness.submit([1, 2, 3], 8)
    bad = harness.submit([4, 5], 8, name="bad")
    harness.turn()
    refused = StepRefused(1, "new_rows: temperature is nan", request_id="bad")
    harness.engine.post(refused)
    harness.worker.restart()
    harness.run()
    end = harness.front_end.ends[bad]
    assert isinstance(end, Failure)
    assert end.kind is FailureKind.INTERNAL
    assert "temperature is nan" in end.message
    assert harness.front_end.tokens[good] == expected_tokens([1, 2, 3], 8)


def test_a_refusal_that_names_nobody_ends_nobody() -> None:
    harness = Harness()
    handle = harness.submit([1, 2, 3], 8)
    harness.turn()
    harness.engine.post(StepRefused(1, "free_rows: row 9 is not live"))
    harness.worker.restart()
    harness.run()
    assert harness.front_end.tokens[handle] == expected_tokens([1, 2, 3], 8)


def test_what_ends_the_loop_is_told() -> None:
    harness = Harness()
    errors: list[Exception] = []
    harness.engine._loop._on_fatal = errors.append
    harness.engine.post(StepAnswer(99, np.empty(0, np.int32), None, StepTimes()))
    harness.engine._loop._run()
    assert [str(error) for error in errors] == ["step 99 was answered where None was next"]


def test_limits_lowered_by_the_worker_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    worker = FakeWorker(max_step_tokens=4, max_steps_in_flight=2, max_rows=8)
    harness = Harness(worker, pipeline_depth=5, max_step_tokens=100)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warnings == [
        "max_step_tokens is 100, lowered to 4 by the worker's limit",
        "pipeline_depth is 5, lowered to 2 by the worker's limit",
        "max_rows is 8, lowered to 4 by max_step_tokens",
    ]
    limits = harness.engine.status().limits
    assert limits is not None
    assert limits.max_rows == 4


def test_draining_refuses_new_requests_and_finishes_running_ones() -> None:
    harness = Harness()
    running = harness.submit([1, 2], 6)
    harness.turn()
    harness.engine.drain(deadline=10.0)
    late = harness.submit([3], 2)
    harness.run()
    assert harness.front_end.tokens[running] == expected_tokens([1, 2], 6)
    end = harness.front_end.ends[late]
    assert isinstance(end, Failure)
    assert (end.kind, end.message) == (FailureKind.UNAVAILABLE, "the server is draining")
    assert not harness.engine.status().ready


def test_what_is_unfinished_at_the_drain_deadline_fails() -> None:
    harness = Harness(FakeWorker(max_rows=1))
    running, waiting = harness.submit([1, 2], 60), harness.submit([3], 2)
    harness.turn()
    harness.engine.drain(deadline=10.0)
    harness.step()
    harness.now = 10.0
    harness.turn()
    kinds = [harness.front_end.ends[handle].kind for handle in (running, waiting)]
    assert kinds == [FailureKind.UNAVAILABLE] * 2
    harness.assert_pool_is_whole()


def test_stopping_ends_every_request() -> None:
    harness = Harness()
    handle = harness.submit([1, 2], 60)
    harness.turn()
    harness.engine.stop()
    harness.turn()
    assert harness.front_end.ends[handle].kind is FailureKind.UNAVAILABLE
