"""Thousands of requests through real processes, the worker simulated, the audit on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from nanoserve import AsyncClient, FinishReason, ServerStatus
from tests.end_to_end.servers import running
from worker.simulated_tokens import expected_tokens

REQUESTS = 2000
VOCAB = 500
STREAMS = 300


async def one_request(client: AsyncClient, seed: int) -> str:
    """One request of random shape; how it ended. Raises if a token is wrong."""
    rng = random.Random(seed)
    prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 60))]
    count = rng.randint(1, 60)
    temperature = rng.choice([0.0, 0.7])
    expected = expected_tokens(prompt, count, VOCAB, temperature=temperature, seed=seed)
    stop_ids = [rng.choice(expected)] if rng.random() < 0.2 else []
    if stop_ids:
        expected = expected[: expected.index(stop_ids[0]) + 1]
    cancel_after = rng.randint(0, len(expected)) if rng.random() < 0.15 else None
    tokens: list[int] = []
    ends = 0
    async with client.generate(
        token_ids=prompt,
        max_tokens=count,
        temperature=temperature,
        seed=seed,
        stop_token_ids=stop_ids,
    ) as generation:
        if cancel_after == 0:
            return "cancelled"
        async for chunk in generation:
            tokens.extend(chunk.token_ids)
            if chunk.finish_reason is not None:
                ends += 1
                assert chunk.usage is not None
                assert chunk.usage.prompt_tokens == len(prompt)
                assert chunk.usage.output_tokens == len(expected)
                assert chunk.finish_reason is (
                    FinishReason.STOP if stop_ids else FinishReason.LENGTH
                )
            elif cancel_after is not None and len(tokens) >= cancel_after:
                assert tokens == expected[: len(tokens)]
                return "cancelled"
    assert tokens == expected
    assert ends == 1
    return "finished"


async def all_requests(address: str) -> tuple[Counter[str], ServerStatus]:
    async with AsyncClient(address) as client:
        slots = asyncio.Semaphore(STREAMS)

        async def bounded(seed: int) -> str:
            async with slots:
                return await one_request(client, seed)

        outcomes = Counter(await asyncio.gather(*(bounded(seed) for seed in range(REQUESTS))))
        while (status := await client.status()).running_requests + status.waiting_requests:
            await asyncio.sleep(0.05)
        return outcomes, status


def test_2000_requests_with_cancels_and_preemptions_all_end_with_the_right_tokens() -> None:
    flags = ("--vocab-size", str(VOCAB), "--max-model-len", "128", "--num-blocks", "400")
    small = ("--block-size", "2", "--max-rows", "48", "--max-step-tokens", "256", "--step-ms", "1")
    with running(simulate=True, worker=(*flags, *small)) as servers:
        outcomes, status = asyncio.run(all_requests(servers.address))
    assert outcomes["finished"] + outcomes["cancelled"] == REQUESTS
    assert outcomes["cancelled"] > 100
    assert status.preemptions > 50
    assert (status.running_requests, status.waiting_requests) == (0, 0)
    assert status.free_blocks == status.usable_blocks == 399
