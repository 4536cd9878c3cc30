"""Static batching gives the tokens of continuous batching, whatever the load."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from scheduler.core.continuous_batching import ContinuousBatching
from scheduler.core.front_end import Finish
from scheduler.core.policy import Policy
from scheduler.core.static_batching import StaticBatching
from tests.scheduler.core.fake_worker import VOCAB, FakeWorker
from tests.scheduler.core.harness import Harness
from tests.scheduler.core.test_static_batching import sampled

REQUESTS = 30


class RandomLoad:
    """The same random requests, end tokens and cancels for any policy."""

    def __init__(self, seed: int, policy: Policy, losses: bool) -> None:
        self.random = random = np.random.default_rng(seed)
        block_size = int(random.choice([1, 3, 4, 16]))
        worker = FakeWorker(
            num_blocks=2 + int(random.integers(30, 120)) // block_size,
            block_size=block_size,
            max_rows=int(random.integers(1, 9)),
            max_model_len=int(random.integers(20, 60)),
        )
        self.harness = Harness(
            worker,
            policy=policy,
            pipeline_depth=int(random.integers(1, 5)),
            max_step_tokens=int(random.integers(9, 40)),
        )
        self.cancelled: set[int] = set()
        self.losses = losses

    def submit(self) -> None:
        limits = self.harness.engine.status().limits
        assert limits is not None
        most = limits.max_request_tokens
        length = int(self.random.integers(1, most))
        prompt = self.random.integers(0, VOCAB, length).tolist()
        count = int(self.random.integers(1, most - length + 1))
        ends = frozenset(self.random.integers(0, VOCAB, 3).tolist())
        self.harness.submit(prompt, count, stop_ids=ends)

    def play(self, requests: int) -> dict[int, list[int]]:
        """Tokens of each request that was not cancelled."""
        while self.harness.handles < requests:
            action = self.random.random()
            if action < 0.25:
                self.submit()
            elif action < 0.28 and self.harness.handles:
                self.cancelled.add(handle := int(self.random.integers(self.harness.handles)) + 1)
                self.harness.abort(handle)
            elif action < 0.285 and self.losses:
                self.harness.worker.restart()
            elif action < 0.6:
                self.harness.worker.answer()
            if action < 0.9:
                self.harness.turn()
        self.harness.run(limit=200_000)
        self.harness.assert_pool_is_whole()
        ends = self.harness.front_end.ends
        assert len(ends) == requests
        for handle, end in ends.items():
            assert isinstance(end, Finish) or handle in self.cancelled
        tokens = self.harness.front_end.tokens
        return {h: tokens[h] for h in ends if h not in self.cancelled}


@cache
def tokens_of_continuous_batching(seed: int, losses: bool) -> dict[int, list[int]]:
    return RandomLoad(seed, ContinuousBatching(), losses).play(REQUESTS)


@pytest.mark.parametrize("losses", [False, True])
@pytest.mark.parametrize("return_together", [False, True])
def test_tokens_equal_continuous_batchings_for_any_load(
    return_together: bool, losses: bool
) -> None:
    discarded = 0
    for seed in range(12):
        policy = StaticBatching(return_together=return_together)
        ours = RandomLoad(seed, policy, losses)
        assert ours.play(REQUESTS) == tokens_of_continuous_batching(seed, losses)
        totals = ours.harness.engine.totals
        discarded += totals.discarded_tokens
        if not losses:
            assert totals.preemptions == 0
            made = totals.output_tokens + totals.discarded_tokens
            assert made == sampled(ours.harness)
    assert discarded > 500
