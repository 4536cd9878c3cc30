"""Whatever is shared, and whatever happens to those who share it, every request gets the tokens
that it would get without a prefix cache. Audited after every turn."""

from __future__ import annotations

import random

import pytest

from scheduler.core.continuous_batching import ContinuousBatching
from scheduler.core.front_end import Failure, FailureKind, Finish
from scheduler.core.policy import Policy
from scheduler.core.prefix_cache import PrefixCache
from scheduler.core.static_batching import StaticBatching
from scheduler.core.worker_link import Disconnected
from tests.scheduler.core.fake_worker import FakeWorker, expected_tokens
from tests.scheduler.core.harness import Harness


class SharedLoad:
    """Requests that begin alike and go on from one another's outputs, among cancels, new workers
    and cut links, over a small pool."""

    def __init__(self, seed: int, policy: Policy, losses: bool, **config: int) -> None:
        self.rng = rng = random.Random(seed)
        block_size = rng.choice([1, 2, 4, 4, 8])
        worker = FakeWorker(
            num_blocks=2 + rng.choice([48, 70, 200]) // block_size,
            block_size=block_size,
            max_rows=rng.choice([2, 4, 8]),
            max_model_len=48,
            max_step_tokens=rng.choice([8, 16, 64]),
        )
        depth = rng.choice([1, 2, 3])
        self.harness = Harness(worker, policy=policy, **({"pipeline_depth": depth} | config))
        self.losses = losses
        self.heard: list[list[int]] = [[rng.randrange(3) for _ in range(30)] for _ in range(3)]
        self.asked: dict[int, tuple[list[int], int, int, frozenset[int]]] = {}
        self.cancelled: set[int] = set()
        self.broken: set[int] = set()

    def submit(self) -> None:
        rng = self.rng
        stem = rng.choice(self.heard)
        prompt = stem[: rng.randint(1, 30)] + [rng.randrange(3) for _ in range(rng.randint(0, 5))]
        most = min(48 - len(prompt), self.harness.books.allocator.num_usable * 48)
        count, seed = rng.randint(1, min(most, 14)), rng.choice([0, 0, 0, 1])
        ends = frozenset(rng.sample(range(97), 2))
        handle = self.harness.submit(prompt, count, seed=seed, stop_ids=ends)
        self.asked[handle] = (prompt, count, seed, ends)
        self.heard.append(prompt + expected_tokens(prompt, count, seed))
        if rng.random() < 0.03:
            self.broken.add(handle)
            self.harness.worker.non_finite.add(f"r{handle}")

    def disturb(self) -> None:
        rng, harness = self.rng, self.harness
        live = list(harness.books.by_handle)
        if rng.random() < 0.7 and live:
            self.cancelled.add(handle := rng.choice(live))
            harness.abort(handle)
        elif self.losses and rng.random() < 0.5:
            harness.worker.restart()
        elif self.losses:
            harness.engine.post(Disconnected("cut"))
            harness.worker.connect(resumed=True)

    def play(self, requests: int) -> None:
        while len(self.asked) < requests:
            action = self.rng.choices(
                [self.submit, self.disturb, self.harness.worker.answer], [25, 4, 70]
            )[0]
            action()
            if self.rng.random() < 0.8:
                self.harness.turn()
        self.harness.run(limit=200_000)

    def check(self) -> None:
        front_end = self.harness.front_end
        assert front_end.ends.keys() == self.asked.keys()
        for handle, (prompt, count, seed, ends) in self.asked.items():
            expected, end = expected_tokens(prompt, count, seed), front_end.ends[handle]
            stops = [place for place, token in enumerate(expected) if token in ends]
            expected = expected[: stops[0] + 1] if stops else expected
            tokens = front_end.tokens[handle]
            if isinstance(end, Finish):
                assert tokens == expected
                assert 0 <= end.usage.cached_tokens < len(prompt)
                continue
            assert isinstance(end, Failure)
            assert tokens == expected[: len(tokens)]
            if end.kind is FailureKind.CANCELLED:
                assert handle in self.cancelled
                continue
            assert end.kind is FailureKind.INTERNAL
            assert handle in self.broken
        self.harness.assert_pool_is_whole()


@pytest.mark.parametrize("losses", [False, True])
def test_random_requests_that_share_get_the_tokens_that_they_would_get_alone(
    losses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    evicted: list[int] = []

    def evict(cache: PrefixCache, block: int) -> None:
        evicted.append(block)
        real(cache, block)

    real = PrefixCache._forget_block
    monkeypatch.setattr(PrefixCache, "_forget_block", evict)
    hits = queries = preemptions = 0
    for seed in range(10):
        load = SharedLoad(seed, ContinuousBatching(), losses)
        load.play(40)
        load.check()
        totals = load.harness.engine.totals
        hits, queries = hits + totals.prefix_hits, queries + totals.prefix_queries
        preemptions += totals.preemptions
    assert hits > queries / 5
    assert preemptions > 8
    assert len(evicted) > 500


def test_random_requests_in_static_batches_share_as_well() -> None:
    hits = 0
    for seed in range(6):
        policy = StaticBatching(return_together=seed % 2 == 0)
        load = SharedLoad(seed, policy, losses=seed % 3 == 0)
        load.play(30)
        load.check()
        hits += load.harness.engine.totals.prefix_hits
    assert hits > 200


@pytest.mark.parametrize("decode_steps", [2, 4, 8])
def test_blocks_are_shared_as_well_by_steps_that_repeat_decodes(decode_steps: int) -> None:
    hits = repeated = 0
    policies = [ContinuousBatching(), ContinuousBatching(), ContinuousBatching(), StaticBatching()]
    for depth, policy in zip((1, 2, 3, 2), policies, strict=True):
        sizes = {"decode_steps": decode_steps, "pipeline_depth": depth}
        load = SharedLoad(20 + depth, policy, losses=depth != 2, **sizes)
        load.play(30)
        load.check()
        hits += load.harness.engine.totals.prefix_hits
        repeated += sum(plan.decode_steps > 1 for plan in load.harness.worker.log)
    assert hits > 500
    assert repeated > 40
