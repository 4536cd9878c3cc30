"""Whatever the load, every request gets the model's tokens and the pool is whole."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.core.front_end import Failure, FailureKind, Finish
from tests.scheduler.core.fake_worker import VOCAB, FakeWorker, expected_tokens
from tests.scheduler.core.harness import Harness


class RandomLoad:
    """Requests, cancels, answers and worker losses in random order, audited after
    every turn."""

    def __init__(self, seed: int, **config: int) -> None:
        self.random = random = np.random.default_rng(seed)
        block_size = int(random.choice([1, 3, 4, 16]))
        num_blocks = 2 + int(random.integers(24, 120)) // block_size
        worker = FakeWorker(
            num_blocks=num_blocks,
            block_size=block_size,
            max_rows=int(random.integers(1, 9)),
            max_model_len=int(random.integers(20, 60)),
        )
        sizes = {
            "pipeline_depth": int(random.integers(1, 5)),
            "max_step_tokens": int(random.integers(2, 40)),
        }
        self.harness = Harness(worker, **(sizes | config))
        self.prompts: dict[int, tuple[list[int], int, int]] = {}
        self.cancelled: set[int] = set()

    def submit(self) -> None:
        limits = self.harness.engine.status().limits
        assert limits is not None
        most = limits.max_request_tokens
        length = int(self.random.integers(1, most))
        count = int(self.random.integers(1, most - length + 1))
        prompt = self.random.integers(0, VOCAB, length).tolist()
        seed = int(self.random.integers(0, 3))
        handle = self.harness.submit(prompt, count, seed=seed)
        self.prompts[handle] = (prompt, count, seed)

    def cancel(self) -> None:
        live = list(self.harness.books.by_handle)
        if live:
            handle = int(self.random.choice(live))
            self.harness.abort(handle)
            self.cancelled.add(handle)

    def play(self, requests: int, losses: bool) -> None:
        while len(self.prompts) < requests:
            action = self.random.random()
            if action < 0.25:
                self.submit()
            elif action < 0.28:
                self.cancel()
            elif action < 0.285 and losses:
                self.harness.worker.restart()
            else:
                self.harness.worker.answer()
            if self.random.random() < 0.8:
                self.harness.turn()
        self.harness.run(limit=200_000)

    def check(self) -> None:
        front_end = self.harness.front_end
        for handle, (prompt, count, seed) in self.prompts.items():
            expected = expected_tokens(prompt, count, seed)
            tokens, end = front_end.tokens[handle], front_end.ends[handle]
            if isinstance(end, Failure):
                assert handle in self.cancelled
                assert end.kind is FailureKind.CANCELLED
                assert tokens == expected[: len(tokens)]
            else:
                assert isinstance(end, Finish)
                assert tokens == expected
                assert end.usage.output_tokens == count
        assert front_end.ends.keys() == self.prompts.keys()
        self.harness.assert_pool_is_whole()


@pytest.mark.parametrize("losses", [False, True])
def test_2000_random_requests_end_once_with_the_right_tokens(losses: bool) -> None:
    preemptions = 0
    for seed in range(40):
        load = RandomLoad(seed)
        load.play(requests=50, losses=losses)
        load.check()
        preemptions += load.harness.engine.totals.preemptions
    assert preemptions > 100


@pytest.mark.parametrize("decode_steps", [2, 4, 8])
def test_steps_that_repeat_decodes_change_no_token_of_any_load(decode_steps: int) -> None:
    repeated = preemptions = 0
    for depth in (1, 2, 3):
        for losses in (False, True):
            load = RandomLoad(10 * depth + losses, decode_steps=decode_steps, pipeline_depth=depth)
            load.play(requests=35, losses=losses)
            load.check()
            repeated += sum(plan.decode_steps > 1 for plan in load.harness.worker.log)
            preemptions += load.harness.engine.totals.preemptions
    assert repeated > 100
    assert preemptions > 5
