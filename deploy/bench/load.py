"""A fixed batch of requests, all sent at once, timed from outside over gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nanoserve import AsyncClient

TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Seconds from the moment the first request was sent."""

    first_tokens: tuple[float, ...]  # of each stream
    end: float


def random_prompts(count: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Prompts of random ids, one list of `length` for each stream."""
    ids = np.random.default_rng(seed).integers(0, vocab_size, (count, length))
    return [[int(i) for i in line] for line in ids]


def run_batch(address: str, prompts: Sequence[Sequence[int]], max_tokens: int) -> BatchTimes:
    """Greedy, past the end tokens, one stream for each prompt. Raises NanoserveError if
    one fails, and RuntimeError if one has not exactly `max_tokens` tokens."""
    return asyncio.run(_run_batch(address, prompts, max_tokens))


async def _run_batch(address: str, prompts: Sequence[Sequence[int]], max_tokens: int) -> BatchTimes:
    async with AsyncClient(address) as client:
        await client.status()  # the connection is not what is timed
        start = time.perf_counter()
        streams = [_stream(client, prompt, max_tokens, start) for prompt in prompts]
        first_tokens = await asyncio.gather(*streams)
        return BatchTimes(tuple(first_tokens), time.perf_counter() - start)


async def _stream(
    client: AsyncClient, prompt: Sequence[int], max_tokens: int, start: float
) -> float:
    """Seconds from `start` to the stream's first token; returns at its end."""
    first, count = None, 0
    generation = client.generate(
        token_ids=prompt,
        max_tokens=max_tokens,
        temperature=0.0,
        ignore_eos=True,
        timeout=TIMEOUT_SECONDS,
    )
    async for chunk in generation:
        if chunk.token_ids and first is None:
            first = time.perf_counter() - start
        count += len(chunk.token_ids)
    if first is None or count != max_tokens:
        raise RuntimeError(f"a stream ended with {count} tokens, {max_tokens} were asked for")
    return first
