"""Random crashes, resumptions, refusals and cancels, one on top of the other, with the audit on."""

from __future__ import annotations

import random

import pytest

from scheduler.core.front_end import Failure, FailureKind, Finish
from scheduler.core.penalties import NO_PENALTIES, Penalties
from scheduler.core.worker_link import Disconnected, StepRefused
from tests.scheduler.core.fake_worker import FakeWorker, expected_tokens
from tests.scheduler.core.harness import Harness

PENALTIES = (NO_PENALTIES, Penalties(1.3), Penalties(frequency=0.5, presence=-0.5))


class Storm:
    """Requests with distinct prompts, some of which crash the worker whenever computed. A third of
    them has no penalties; three of four ask for log-probabilities."""

    def __init__(self, seed: int, **config: int) -> None:
        self.rng = rng = random.Random(seed)
        self.worker = FakeWorker(
            num_blocks=rng.choice([10, 16, 40]),
            block_size=4,
            max_rows=rng.choice([2, 4, 8]),
            max_model_len=64,
            max_step_tokens=rng.choice([8, 16, 64]),
        )
        self.harness = Harness(self.worker, **({"pipeline_depth": rng.choice([1, 2, 3])} | config))
        self.wanted: dict[int, tuple[list[int], int, Penalties]] = {}
        self.poison: set[str] = set()
        self.cancelled: set[int] = set()
        self.refused: set[int] = set()

    def run(self) -> None:
        for _ in range(300):
            self.rng.choices(
                [self.submit, self.answer, self.crash, self.cut, self.cancel, self.refuse],
                [20, 60, 6, 3, 4, 1],
            )[0]()
            self.harness.now += 0.01
            self.harness.turn()
        for _ in range(5000):
            if not self.harness.books.num_requests:
                return
            self.answer()
            # Past the breaker's longest pause, so that it is not what is seen here.
            self.harness.now += 0.01
            self.harness.turn()
        raise AssertionError("the engine did not come to rest")

    def submit(self) -> None:
        rng = self.rng
        prompt = [rng.randrange(97) for _ in range(rng.randint(1, 18))]
        count = rng.randint(1, 14)
        penalties = PENALTIES[len(self.wanted) % 3]
        handle = self.harness.submit(prompt, count, penalties=penalties)
        self.wanted[handle] = (prompt, count, penalties)
        if rng.random() < 0.03:
            self.poison.add(f"r{handle}")

    def answer(self) -> None:
        worker = self.worker
        if not worker.unanswered:
            return
        oldest = len(worker.step_requests) - worker.num_unanswered
        if self.poison.intersection(worker.step_requests[oldest]):
            worker.restart()
        else:
            worker.answer()

    def crash(self) -> None:
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            if self.rng.random() < 0.5:
                self.harness.engine.post(Disconnected("killed"))
            self.worker.restart()
            self.harness.turn()

    def cut(self) -> None:
        self.harness.engine.post(Disconnected("cut"))
        self.harness.turn()
        self.worker.connect(resumed=True)

    def cancel(self) -> None:
        live = list(self.harness.books.by_handle)
        if live:
            handle = self.rng.choice(live)
            self.cancelled.add(handle)
            self.harness.abort(handle)

    def refuse(self) -> None:
        if not self.worker.unanswered:
            return
        step = self.worker.unanswered[0].step_id
        oldest = len(self.worker.step_requests) - self.worker.num_unanswered
        name = self.rng.choice([*self.worker.step_requests[oldest], ""])
        if name:
            self.refused.add(int(name[1:]))
        self.harness.engine.post(StepRefused(step, "bad", request_id=name))
        self.worker.restart()


@pytest.mark.parametrize("seed", range(60))
def test_every_request_ends_once_with_its_own_tokens_whatever_the_worker_does(seed: int) -> None:
    storm = Storm(seed)
    storm.run()
    assert_all_ended_with_their_own_tokens(storm)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("decode_steps", [2, 4, 8])
def test_a_worker_may_be_lost_amid_the_repetitions_of_a_step(decode_steps: int, depth: int) -> None:
    storm = Storm(100 + 10 * depth + decode_steps, pipeline_depth=depth, decode_steps=decode_steps)
    storm.run()
    assert_all_ended_with_their_own_tokens(storm)
    assert sum(plan.decode_steps > 1 for plan in storm.worker.log) > 5


def assert_all_ended_with_their_own_tokens(storm: Storm) -> None:
    harness = storm.harness
    assert harness.front_end.ends.keys() == storm.wanted.keys()
    for handle, (prompt, count, penalties) in storm.wanted.items():
        end, tokens = harness.front_end.ends[handle], harness.front_end.tokens[handle]
        expected = expected_tokens(prompt, count, 0, penalties)
        assert tokens == expected[: len(tokens)]
        if isinstance(end, Finish):
            assert tokens == expected
            continue
        assert isinstance(end, Failure)
        if end.kind is FailureKind.INTERNAL:
            # So many crashes from outside, and in bursts, blame one that was alone as well.
            assert handle in storm.refused or "the worker ended" in end.message
        elif end.kind is FailureKind.CANCELLED:
            assert handle in storm.cancelled
        else:
            assert end.kind is FailureKind.UNAVAILABLE, end
            assert "times in a row" in end.message
    harness.assert_pool_is_whole()


@pytest.mark.parametrize(("seed", "decode_steps"), [(0, 1), (1, 1), (2, 1), (3, 1), (0, 4), (2, 8)])
def test_nobody_is_lost_to_kills_at_random_points(seed: int, decode_steps: int) -> None:
    """One for about twenty steps, where a prompt takes up to five."""
    rng = random.Random(seed)
    worker = FakeWorker(num_blocks=60, max_rows=4, max_model_len=64, max_step_tokens=8)
    harness = Harness(worker, pipeline_depth=1 + seed % 3, decode_steps=decode_steps)
    wanted: dict[int, tuple[list[int], int, Penalties]] = {}
    kills = 0
    while len(wanted) < 60 or harness.books.num_requests:
        chance = rng.random()
        if chance < 0.15 and len(wanted) < 60:
            prompt = [rng.randrange(97) for _ in range(rng.randint(1, 30))]
            count = rng.randint(1, 10)
            penalties = PENALTIES[len(wanted) % 3]
            handle = harness.submit(prompt, count, penalties=penalties)
            wanted[handle] = (prompt, count, penalties)
        elif chance > 0.95 and worker.unanswered:
            kills += 1
            worker.restart()
        else:
            worker.answer()
        harness.now += 0.01
        harness.turn()
    assert kills > 5
    for handle, (prompt, count, penalties) in wanted.items():
        assert isinstance(harness.front_end.ends[handle], Finish)
        assert harness.front_end.tokens[handle] == expected_tokens(prompt, count, 0, penalties)
    harness.assert_pool_is_whole()
