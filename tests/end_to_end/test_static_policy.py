"""The waste of a static batch, counted from outside, through real processes."""

from __future__ import annotations

import asyncio

import pytest

from nanoserve import AsyncClient, ServerStatus
from tests.end_to_end.servers import running
from worker.simulated_tokens import expected_tokens

VOCAB = 500
WORKER = ("--vocab-size", str(VOCAB), "--num-blocks", "64", "--step-ms", "2")
# A full batch starts at once; the wait only bounds the test.
STATIC = ("--policy", "static", "--static-batch", "8", "--static-wait", "30")


async def seven_behind_one(address: str) -> tuple[list[float], ServerStatus]:
    """Of seven requests of 4 tokens and one of 32, the last: seconds from first token to end
    by the server's clock; and the server's totals."""

    async def one(client: AsyncClient, i: int, count: int) -> float:
        prompt = [i + 1, 7, 9]
        answer = await client.generate(
            token_ids=prompt, max_tokens=count, temperature=0, timeout=60
        ).collect()
        assert list(answer.token_ids) == expected_tokens(prompt, count, VOCAB)
        return answer.usage.total_seconds - answer.usage.first_token_seconds

    async with AsyncClient(address) as client:
        requests = [one(client, i, 4 if i < 7 else 32) for i in range(8)]
        seconds = await asyncio.gather(*requests)
        for _ in range(100):
            status = await client.status()
            if not status.running_requests:
                break
            await asyncio.sleep(0.02)
        return seconds, status


def run(*flags: str) -> tuple[list[float], ServerStatus]:
    with running(simulate=True, worker=WORKER, scheduler=flags) as servers:
        return asyncio.run(seven_behind_one(servers.address))


def test_a_static_batch_wastes_196_tokens_and_short_requests_end_before_it_does() -> None:
    seconds, status = run(*STATIC)
    assert (status.output_tokens, status.discarded_tokens, status.steps) == (60, 196, 32)
    assert max(seconds[:7]) < seconds[7]


def test_with_return_batch_all_end_at_the_moment_that_the_slowest_is_done() -> None:
    seconds, status = run(*STATIC, "--static-return", "batch")
    assert (status.output_tokens, status.discarded_tokens, status.steps) == (60, 196, 32)
    assert seconds == pytest.approx([seconds[7]] * 8, abs=1e-6)


def test_continuous_batching_wastes_none() -> None:
    _, status = run()
    assert (status.output_tokens, status.discarded_tokens) == (60, 0)
