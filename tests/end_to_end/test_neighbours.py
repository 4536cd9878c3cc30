"""A request's tokens never depend on its neighbours: the same ids, and the same
log-probabilities to the last bit, alone and in any company.

Exact in float32 on the CPU: no comparison here is skipped.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.model.fetch import fetch
from nanoserve import AsyncClient, TokenLogprobs
from tests.end_to_end.servers import running
from tests.tiny_llama import tiny_llama


@dataclass(frozen=True)
class Work:
    """One request; its output must be a function of these alone."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    extras: dict[str, float] = field(default_factory=dict)  # penalties and top_logprobs


# One for each of four requests, in turns.
EXTRAS: list[dict[str, float]] = [
    {},
    {"top_logprobs": 3},
    {},
    {"repetition_penalty": 1.3, "presence_penalty": -0.5, "top_logprobs": 0},
]
# What a request gets: ids, and log-probabilities if it asked for them.
Output = tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]


def some_work(count: int, vocab_size: int, longest_prompt: int, longest_output: int) -> list[Work]:
    rng = random.Random(count)
    return [
        Work(
            prompt=tuple(rng.randrange(vocab_size) for _ in range(rng.randint(1, longest_prompt))),
            max_tokens=rng.randint(1, longest_output),
            temperature=rng.choice([0.0, 0.0, 0.8]),
            seed=rng.randrange(2**62),
            extras=EXTRAS[i % 4],
        )
        for i in range(count)
    ]


async def _one(client: AsyncClient, work: Work, delay: float) -> Output:
    await asyncio.sleep(delay)
    generation = client.generate(
        token_ids=work.prompt,
        max_tokens=work.max_tokens,
        temperature=work.temperature,
        seed=work.seed,
        ignore_eos=True,
        **work.extras,
    )
    completion = await generation.collect()
    return completion.token_ids, completion.logprobs


async def _alone(address: str, works: Sequence[Work]) -> list[Output]:
    async with AsyncClient(address) as client:
        return [await _one(client, work, 0.0) for work in works]


async def _together(
    address: str, works: Sequence[Work], spread: float, seed: int
) -> tuple[list[Output], int]:
    """The outputs, and the server's preemptions so far. Requests arrive at random within
    `spread` seconds, in random order."""
    rng = random.Random(seed)
    async with AsyncClient(address) as client:
        calls = [_one(client, work, rng.uniform(0, spread)) for work in works]
        outputs = await asyncio.gather(*calls)
        return outputs, (await client.status()).preemptions


def alone(address: str, works: Sequence[Work]) -> list[Output]:
    outputs = asyncio.run(_alone(address, works))
    for work, (ids, logprobs) in zip(works, outputs, strict=True):
        assert len(ids) == work.max_tokens
        assert len(logprobs) == (len(ids) if "top_logprobs" in work.extras else 0)
    return outputs


def assert_same_together(
    address: str, works: Sequence[Work], expected: Sequence[Output], batch: int
) -> int:
    """Runs the work in groups of `batch`; returns the server's preemptions so far."""
    preemptions = 0
    for start in range(0, len(works), batch):
        group = slice(start, start + batch)
        spread = 0.0 if batch % 2 else 0.05
        outputs, preemptions = asyncio.run(_together(address, works[group], spread, start))
        assert outputs == list(expected[group])
    return preemptions


# depth, chunk (tokens per step), K/V blocks of 4 tokens
TINY_SETTINGS = [(1, 512, 2000), (2, 24, 60), (3, 7, 40)]


def test_a_tiny_llamas_tokens_are_the_same_alone_and_in_any_batch(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path)
    works = some_work(32, vocab_size=256, longest_prompt=60, longest_output=40)
    expected: list[Output] = []
    preemptions = []
    for depth, chunk, blocks in TINY_SETTINGS:
        worker = ("--num-blocks", str(blocks), "--block-size", "4", "--threads", "1")
        scheduler = ("--pipeline-depth", str(depth), "--max-step-tokens", str(chunk))
        with running(model=folder, worker=worker, scheduler=scheduler) as servers:
            expected = expected or alone(servers.address, works)
            for batch in (2, 3, 8, 32):
                last = assert_same_together(servers.address, works, expected, batch)
            preemptions.append(last)
    assert preemptions[0] == 0
    assert min(preemptions[1:]) > 0, "the small pools must have preempted"


@pytest.mark.timeout(600)  # an eighth of that, but for other work on the cores
def test_smollm2s_tokens_are_the_same_alone_and_in_any_batch() -> None:
    works = some_work(32, vocab_size=49152, longest_prompt=40, longest_output=12)
    expected: list[Output] = []
    preemptions = []
    for depth, chunk, blocks in [(1, 512, 6400), (2, 64, 80), (3, 20, 70)]:
        worker = ("--dtype", "float32", "--block-size", "1", "--num-blocks", str(blocks))
        scheduler = ("--pipeline-depth", str(depth), "--max-step-tokens", str(chunk))
        with running(model=fetch(), worker=worker, scheduler=scheduler) as servers:
            expected = expected or alone(servers.address, works)
            for batch in (9, 32) if depth == 1 else (32,):
                last = assert_same_together(servers.address, works, expected, batch)
            preemptions.append(last)
    assert preemptions[0] == 0
    assert max(preemptions) > 0, "the small pools must have preempted"
