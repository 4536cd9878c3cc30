"""The waste of a static batch, counted from outside, through real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nanoserve import AsyncClient, ServerStatus
from tests.end_to_end.servers import running
from tests.tiny_llama import tiny_llama
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
        while (status := await client.status()).running_requests:
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


async def outputs_of_eight(address: str, stop: list[int]) -> tuple[list[list[int]], int]:
    """Of requests of 23 down to 2 tokens, greedy ones and others, the first with `stop`; and
    the server's total of discarded tokens."""
    async with AsyncClient(address) as client:
        generations = [
            client.generate(
                token_ids=[3 * i + j for j in range(2 + 5 * i)],
                max_tokens=23 - 3 * i,
                temperature=0.8 * (i % 2),
                seed=i,
                stop_token_ids=[] if i else stop,
                ignore_eos=True,
            )
            for i in range(8)
        ]
        answers = await asyncio.gather(*(generation.collect() for generation in generations))
        status = await client.status()
        return [list(answer.token_ids) for answer in answers], status.discarded_tokens


def test_rows_that_go_on_for_nobody_change_no_tokens_of_a_model(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path)
    worker = ("--dtype", "float32", "--num-blocks", "200", "--threads", "1")
    with running(model=model, worker=worker, scheduler=("--no-tokenizer",)) as servers:
        whole, _ = asyncio.run(outputs_of_eight(servers.address, []))
    # The first is cut at its fourth token, and so decodes on in a static batch.
    stop = whole[0][3]
    expected = [whole[0][: whole[0].index(stop) + 1], *whole[1:]]
    flags = ("--no-tokenizer", *STATIC)
    with running(model=model, worker=worker, scheduler=flags) as servers:
        outputs, discarded = asyncio.run(outputs_of_eight(servers.address, [stop]))
    assert outputs == expected
    # All rows run until the second is done; the last one's tokens are all its own.
    assert discarded == 8 * 20 - sum(map(len, expected))
