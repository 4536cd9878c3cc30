"""A request that crashes the worker fails alone, and takes nobody with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.core.front_end import Failure, FailureKind, Finish
from scheduler.core.worker_link import Disconnected, StepPlan, StepRefused
from tests.scheduler.core.fake_worker import FakeWorker, expected_tokens
from tests.scheduler.core.harness import Harness

HALF = 225.0  # seconds: of the step timeout on a CPU
WAYS = [("said", 3), ("hung", 4), ("silent", 6)]


def lose(harness: Harness, how: str = "silent") -> None:
    """The worker, and whatever it owes."""
    if how == "hung":
        harness.now += HALF + 1
    harness.engine.post(Disconnected("gone", step_failed=how == "said"))
    harness.worker.restart()


def run_with_poison(
    harness: Harness, crashes_in: Callable[[StepPlan, list[str]], bool], how: str
) -> int:
    """Until all have ended; the worker crashes in the steps of which `crashes_in` is true, given
    their requests. Returns the crashes."""
    worker, crashes = harness.worker, 0
    for _ in range(2000):
        harness.turn()
        if not worker.unanswered:
            if not harness.books.num_requests:
                return crashes
            continue
        oldest = len(worker.log) - worker.num_unanswered
        if crashes_in(worker.log[oldest], worker.step_requests[oldest]):
            crashes += 1
            lose(harness, how)
        else:
            worker.answer()
    raise AssertionError("the engine did not come to rest")


def assert_blamed(harness: Harness, handle: int, times: int) -> None:
    end = harness.front_end.ends[handle]
    assert isinstance(end, Failure)
    assert end.kind is FailureKind.INTERNAL
    assert f"r{handle}: the worker ended {times} times in a row" in end.message


def assert_right(harness: Harness, handle: int, prompt: list[int], count: int) -> None:
    assert isinstance(harness.front_end.ends[handle], Finish)
    assert harness.front_end.tokens[handle] == expected_tokens(prompt, count)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("budget", [4, 64])
@pytest.mark.parametrize(("how", "losses"), WAYS)
def test_one_poisonous_request_fails_and_every_other_gets_its_tokens(
    depth: int, budget: int, how: str, losses: int
) -> None:
    worker = FakeWorker(max_rows=4, max_step_tokens=budget, num_blocks=24)
    harness = Harness(worker, pipeline_depth=depth)
    prompts = [[i, *range(i)] for i in range(1, 9)]
    handles = [harness.submit(prompt, 6) for prompt in prompts]
    crashes = run_with_poison(harness, lambda _, names: "r3" in names, how)
    assert crashes == losses
    assert_blamed(harness, handles.pop(2), losses)
    prompts.pop(2)
    for handle, prompt in zip(handles, prompts, strict=True):
        assert_right(harness, handle, prompt, 6)
    harness.assert_pool_is_whole()


@pytest.mark.parametrize(("how", "losses"), WAYS)
def test_a_request_that_turns_poisonous_late_is_found_too(how: str, losses: int) -> None:
    """It crashes the worker once it has made five tokens: a recompute runs in chunks, and an
    answered chunk clears nobody."""
    worker = FakeWorker(max_rows=4, max_step_tokens=4, max_model_len=64)
    harness = Harness(worker, pipeline_depth=2)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 9]]
    handles = [harness.submit(prompt, 12) for prompt in prompts]

    def crashes_in(plan: StepPlan, names: list[str]) -> bool:
        return "r2" in names and plan.context_lens[names.index("r2")] > 5 + 5 - 1

    assert run_with_poison(harness, crashes_in, how) == losses
    assert_blamed(harness, handles[1], losses)
    assert harness.front_end.tokens[handles[1]] == expected_tokens(prompts[1], 12)[:5]
    assert_right(harness, handles[0], prompts[0], 12)
    assert_right(harness, handles[2], prompts[2], 12)


@pytest.mark.parametrize(("how", "losses"), [("said", 3), ("hung", 5), ("silent", 8)])
def test_a_request_that_crashes_in_decode_only_is_found_though_it_makes_tokens(
    how: str, losses: int
) -> None:
    """One with each recompute, so that its crashes never come at the same place."""
    harness = Harness(FakeWorker(max_rows=4), pipeline_depth=1)
    handles = [harness.submit([i, i], 20) for i in range(1, 4)]

    def crashes_in(plan: StepPlan, names: list[str]) -> bool:
        rows = [new.request_id for new in plan.new_rows]
        return "r2" in names and "r2" not in rows

    assert run_with_poison(harness, crashes_in, how) == losses
    assert_blamed(harness, handles[1], losses)
    assert_right(harness, handles[0], [1, 1], 20)
    assert_right(harness, handles[2], [3, 3], 20)


def test_a_request_whose_crashes_leave_time_for_two_tokens_gets_all_of_them() -> None:
    """Nobody is stuck then, and it is not told from an innocent one on a worker that is killed."""
    harness = Harness(FakeWorker(max_rows=4), pipeline_depth=1)
    handles = [harness.submit([i, i], 20) for i in range(1, 4)]
    fresh = 0

    def crashes_in(plan: StepPlan, names: list[str]) -> bool:
        nonlocal fresh
        fresh = 0 if any(new.request_id == "r2" for new in plan.new_rows) else fresh + 1
        return "r2" in names and fresh == 2

    assert run_with_poison(harness, crashes_in, "said") == 9
    for i, handle in enumerate(handles, 1):
        assert_right(harness, handle, [i, i], 20)


def test_suspects_run_alone_until_each_has_made_two_tokens() -> None:
    harness = Harness(FakeWorker(max_rows=4), pipeline_depth=3)
    handles = [harness.submit([i, i], 5) for i in range(4)]
    harness.turn()
    for _ in range(2):
        lose(harness)
        harness.turn()
    after = len(harness.worker.step_requests)
    harness.run()
    steps = harness.worker.step_requests[after - 1 :]
    alone = [["r1"], ["r1"], ["r2"], ["r2"], ["r3"], ["r3"], ["r4"], ["r4"]]
    assert steps[:9] == [*alone, ["r1", "r2", "r3", "r4"]]
    for i, handle in enumerate(handles):
        assert_right(harness, handle, [i, i], 5)


def alone(
    prompts: list[list[int]], count: int = 4, depth: int = 1, budget: int = 64
) -> tuple[Harness, list[int]]:
    """Requests that were in flight at two losses; the first of them runs alone."""
    harness = Harness(FakeWorker(max_rows=4, max_step_tokens=budget), pipeline_depth=depth)
    handles = [harness.submit(prompt, count) for prompt in prompts]
    harness.turn()
    for _ in range(2):
        lose(harness)
        harness.turn()
    return harness, handles


def lose_after(harness: Harness, chunks: int) -> None:
    """The worker, with so many chunks of whoever runs answered."""
    for _ in range(chunks):
        harness.step()
    lose(harness)
    harness.turn()


LONG = list(range(20))  # five chunks of 4


@pytest.mark.parametrize(
    "chunks", [(0, 0, 0), (2, 2, 2), (0, 1, 2, 3, 4), (3, 3, 3, 0, 0), (2, 1, 2, 1, 2)]
)
def test_kills_from_outside_that_meet_a_suspect_alone_are_a_pause(chunks: tuple[int, ...]) -> None:
    """Three times in a row at one place, or five times at others."""
    harness, handles = alone([LONG], budget=4)
    for count in chunks:
        lose_after(harness, count)
    harness.run()
    assert_right(harness, handles[0], LONG, 4)
    assert harness.engine.totals.worker_restarts == 2 + len(chunks)


@pytest.mark.parametrize(
    ("chunks", "times"),
    [((1, 1, 1, 1), 6), ((2, 1, 1, 1, 1), 7), ((0, 1, 2, 3, 4, 0), 8)],
)
def test_four_at_one_place_or_six_anywhere_are_blamed(chunks: tuple[int, ...], times: int) -> None:
    harness, handles = alone([LONG], budget=4)
    for count in chunks[:-1]:
        lose_after(harness, count)
        assert handles[0] not in harness.front_end.ends
    lose_after(harness, chunks[-1])
    assert_blamed(harness, handles[0], times)


def test_a_place_is_one_position_in_flight_at_every_loss() -> None:
    """With two steps in flight the crash may be in either, and the answer to the first may have
    been lost or not: positions 0 to 7 and 4 to 11 have 4 to 7 in common."""
    harness = Harness(FakeWorker(max_rows=4, max_step_tokens=4), pipeline_depth=2)
    handle = harness.submit(LONG, 4)
    harness.turn()
    for _ in range(2):
        lose_after(harness, 0)
    for chunks in (0, 1, 1):
        lose_after(harness, chunks)
    assert handle not in harness.front_end.ends
    lose_after(harness, 0)
    assert_blamed(harness, handle, 6)


def test_two_tokens_clear_a_suspect_of_all_that_was() -> None:
    harness, handles = alone([LONG], count=9, budget=4)
    for _ in range(2):
        for _ in range(3):
            lose_after(harness, 1)
        lose_after(harness, 6)  # five chunks, of which the last gives a token, and a decode
        lose_after(harness, 0)
    harness.run()
    assert_right(harness, handles[0], LONG, 9)


def test_a_suspect_lost_alone_goes_behind_those_that_were_not() -> None:
    """Who is innocent gets on, and shows that the worker runs, before it is risked again."""
    harness, _ = alone([[1, 1], [2, 2], [3, 3]])
    harness.worker.step_requests.clear()
    lose_after(harness, 0)
    for _ in range(4):
        harness.step()
    assert harness.worker.step_requests == [["r2"], ["r2"], ["r3"], ["r3"], ["r1"]]
    lose_after(harness, 0)
    assert harness.worker.step_requests[-1] == ["r1"], "the others are cleared"
    harness.run()


def tried(depth: int = 1) -> tuple[Harness, list[int]]:
    """Three long requests that were suspected; r3 is alone, the others are cleared."""
    worker = FakeWorker(max_rows=3)
    harness = Harness(worker, pipeline_depth=depth)
    handles = [harness.submit([i, i], 40) for i in range(1, 4)]
    harness.turn()
    for _ in range(2):
        lose(harness)
        harness.turn()
    for _ in range(4):
        assert worker.step_requests[-1] != ["r3"]
        harness.step()
    assert worker.step_requests[-1] == ["r3"]
    return harness, handles


def hang(harness: Harness) -> None:
    """The trial of a suspect hangs, and HALF and a second later there is another worker."""
    lose(harness, "hung")
    harness.turn()


def who_runs(harness: Harness, steps: int) -> set[tuple[str, ...]]:
    """In so many steps of 25 seconds each; 9 of them are HALF."""
    before = len(harness.worker.step_requests)
    for _ in range(steps):
        harness.now += 25
        harness.step()
    return set(map(tuple, harness.worker.step_requests[before:]))


@pytest.mark.parametrize("depth", [1, 3])
def test_before_a_suspect_is_tried_again_the_others_have_the_worker_as_long_as_that_took(
    depth: int,
) -> None:
    harness, handles = tried(depth)
    harness.abort(handles[0])
    late = harness.submit([4, 4], 40)
    hang(harness)
    assert who_runs(harness, 9) == {("r2", "r4")}
    harness.now += 2
    harness.turn()
    assert harness.worker.num_unanswered == depth
    for _ in range(depth):  # steps of theirs, beside which nobody is tried
        assert harness.worker.step_requests[-1] == ["r2", "r4"]
        harness.step()
    assert harness.worker.step_requests[-1] == ["r3"]
    assert harness.worker.num_unanswered == 1
    hang(harness)
    assert_blamed(harness, handles[2], 4)
    harness.run()
    assert_right(harness, handles[1], [2, 2], 40)
    assert_right(harness, late, [4, 4], 40)
    harness.assert_pool_is_whole()


def test_a_recess_ends_by_itself_though_nobody_has_a_step_in_it() -> None:
    """The others have ended meanwhile."""
    harness, handles = tried()
    hang(harness)
    for handle in handles[:2]:
        harness.abort(handle)
    harness.run()
    assert_right(harness, handles[2], [3, 3], 40)


def test_a_suspect_that_is_cancelled_in_the_recess_leaves_the_worker_to_the_others() -> None:
    harness, handles = tried()
    hang(harness)
    who_runs(harness, 5)
    harness.abort(handles[2])
    assert who_runs(harness, 20) == {("r1", "r2")}
    harness.run()
    assert harness.front_end.ends[handles[2]].kind is FailureKind.CANCELLED
    for i, handle in enumerate(handles[:2], 1):
        assert_right(harness, handle, [i, i], 40)


def test_a_worker_lost_in_a_recess_says_nothing_of_the_suspect() -> None:
    harness, handles = tried()
    hang(harness)
    for _ in range(3):
        who_runs(harness, 3)
        hang(harness)
    assert harness.front_end.ends == {}
    harness.run()
    for i, handle in enumerate(handles, 1):
        assert_right(harness, handle, [i, i], 40)


@pytest.mark.parametrize(("took", "runs"), [(10.0, ["r1", "r2"]), (9.9, ["r3"])])
def test_a_trial_that_was_short_is_repeated_at_once(took: float, runs: list[str]) -> None:
    harness, _ = tried()
    harness.now += took
    lose(harness)
    harness.turn()
    assert harness.worker.step_requests[-1] == runs
    harness.run()


def test_in_a_recess_the_suspect_keeps_its_place_among_the_waiting() -> None:
    harness, _ = tried()
    hang(harness)
    for i in range(2):  # the first of them gets the third row
        harness.submit([4 + i], 40)
    assert who_runs(harness, 2) == {("r1", "r2", "r4")}
    assert [request.request_id for request in harness.books.waiting] == ["r3", "r5"]
    harness.run()


def test_with_nobody_else_there_is_no_recess() -> None:
    harness, handles = alone([LONG], budget=4)
    hang(harness)
    assert harness.worker.step_requests[-1] == ["r1"]
    harness.run()
    assert_right(harness, handles[0], LONG, 4)


def test_a_step_that_failed_beside_others_is_nobodys_fault_yet() -> None:
    harness = Harness(FakeWorker(max_rows=4), pipeline_depth=1)
    handles = [harness.submit([i, i], 4) for i in range(3)]
    harness.turn()
    for _ in range(2):
        lose(harness, "said")
        harness.turn()
    assert harness.front_end.ends == {}
    harness.run()
    for i, handle in enumerate(handles):
        assert_right(harness, handle, [i, i], 4)


def test_what_a_worker_said_counts_though_it_is_reached_once_more_before_it_ends() -> None:
    harness, handles = alone([[1, 1]])
    harness.engine.post(Disconnected("a step failed", step_failed=True))
    harness.worker.connect(resumed=True)
    harness.turn()
    harness.engine.post(Disconnected("gone"))
    lose(harness)
    harness.turn()
    assert_blamed(harness, handles[0], 3)


def test_what_one_worker_said_is_not_held_against_the_next_ones_request() -> None:
    harness = Harness(FakeWorker(max_rows=4), pipeline_depth=1)
    handle = harness.submit([1, 1], 4)
    harness.turn()
    for how in ("silent", "said", "silent"):
        lose(harness, how)
        harness.turn()
    harness.run()
    assert_right(harness, handle, [1, 1], 4)


def test_cut_links_are_no_losses() -> None:
    harness, handles = alone([LONG], budget=4)
    for _ in range(10):
        harness.engine.post(Disconnected("cut"))
        harness.worker.connect(resumed=True)
        harness.turn()
    harness.run()
    assert_right(harness, handles[0], LONG, 4)


@pytest.mark.parametrize("given_up", [False, True])
def test_a_worker_that_stands_still_once_and_is_killed_once_under_a_suspect_is_a_pause(
    given_up: bool,
) -> None:
    """Whether it ends itself for that or the scheduler gives it up. One more kill is too many."""
    harness, handles = alone([[1, 1]])
    lose_after(harness, 0)
    harness.now += 2 * HALF + 1 if given_up else HALF + 1
    if given_up:
        harness.turn()
    assert harness.worker.given_up == given_up
    lose_after(harness, 0)
    assert harness.front_end.ends == {}
    lose_after(harness, 0)
    assert_blamed(harness, handles[0], 5)


def test_a_link_that_stands_still_and_is_resumed_is_no_hang() -> None:
    harness, handles = alone([[1, 1]])
    for _ in range(3):
        harness.now += HALF + 1
        harness.engine.post(Disconnected("cut"))
        harness.worker.connect(resumed=True)
        harness.turn()
        lose(harness)
        harness.turn()
    harness.run()
    assert_right(harness, handles[0], [1, 1], 4)


def test_what_a_worker_is_away_for_is_no_hang() -> None:
    """Its steps wait as long as the next one takes to load."""
    harness, handles = alone([[1, 1]])
    for _ in range(3):
        harness.engine.post(Disconnected("killed"))
        harness.turn()
        harness.now += HALF + 1
        harness.engine.post(Disconnected("nobody listens"))
        harness.turn()
        harness.worker.restart()
        harness.turn()
    harness.run()
    assert_right(harness, handles[0], [1, 1], 4)


def test_a_worker_rolled_under_load_three_times_without_a_token_is_a_pause() -> None:
    harness = Harness(FakeWorker(max_rows=4), pipeline_depth=2)
    handles = [harness.submit([i, i], 4) for i in range(4)]
    harness.turn()
    for _ in range(3):
        harness.engine.post(Disconnected("UNAVAILABLE: the worker is shutting down"))
        lose(harness)
        harness.turn()
    harness.run()
    for i, handle in enumerate(handles):
        assert_right(harness, handle, [i, i], 4)


def test_losses_with_nothing_in_flight_concern_nobody() -> None:
    harness, handles = alone([[1, 1]])
    lose(harness)
    lose(harness)  # before the engine can send a step
    harness.turn()
    lose_after(harness, 0)
    harness.run()
    assert_right(harness, handles[0], [1, 1], 4)
    assert harness.engine.totals.worker_restarts == 5


def test_a_loss_with_a_step_of_one_that_was_cancelled_in_flight_is_not_a_suspects_own() -> None:
    harness, handles = alone([[1, 1], [2, 2], [3, 3]], depth=2)
    for tokens_of_r3 in (0, 0, 2, 0, 0, 0):  # r1 and r2 take turns, thrice each
        lose_after(harness, tokens_of_r3)
    assert harness.worker.step_requests[-1] == ["r1"]
    harness.abort(handles[0])
    harness.turn()
    assert harness.worker.step_requests[-1] == ["r2"]
    lose(harness)
    harness.run()
    assert_right(harness, handles[1], [2, 2], 4)


def test_one_crash_makes_nobody_a_suspect() -> None:
    harness = Harness(FakeWorker(max_rows=4))
    for i in range(4):
        harness.submit([i, i], 5)
    harness.turn()
    harness.worker.restart()
    harness.turn()
    assert harness.worker.step_requests[-1] == ["r1", "r2", "r3", "r4"]


def test_losses_with_two_tokens_in_between_make_nobody_a_suspect() -> None:
    harness = Harness(FakeWorker(max_rows=2), pipeline_depth=1)
    handles = [harness.submit([i], 20) for i in range(2)]
    for _ in range(6):
        harness.turn()
        harness.step()
        harness.step()
        lose(harness)
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
