"""Requests that begin alike share K/V, through real processes, and nobody's tokens change."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanoserve import AsyncClient, ServerStatus, TokenLogprobs
from tests.end_to_end.servers import running, supervised
from tests.simulated_logprobs import right_logprobs
from tests.tiny_llama import tiny_llama
from tests.worker.recorded_steps import entries, replay_process, steps_of
from worker.simulated_tokens import expected_tokens

VOCAB = 256
REQUESTS = 1000


@dataclass(frozen=True)
class Work:
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    leave_after: int | None = None  # tokens
    penalties: dict[str, float] = field(default_factory=dict)
    top_logprobs: int | None = None

    def expected(self) -> list[int]:
        """Of the simulated worker."""
        how = {"temperature": self.temperature, "seed": self.seed, **self.penalties}
        return expected_tokens(self.prompt, self.max_tokens, VOCAB, **how)


@dataclass(frozen=True)
class Answer:
    tokens: tuple[int, ...]
    cached: int | None  # None: its client left
    logprobs: tuple[TokenLogprobs, ...] = ()


def family(rng: random.Random, count: int, longest: int, output: int, leave: float) -> list[Work]:
    """Prompts that go on from four beginnings, each other's beginnings and outputs."""
    stems = [[rng.randrange(VOCAB) for _ in range(longest)] for _ in range(4)]
    works = []
    for i in range(count):
        prompt = rng.choice(stems)[: rng.randint(1, longest)]
        prompt += [rng.randrange(VOCAB) for _ in range(rng.randint(0, 6))]
        most = rng.randint(1, output)
        work = Work(
            prompt=tuple(prompt),
            max_tokens=most,
            temperature=rng.choice([0.0, 0.0, 0.8]),
            seed=rng.randrange(2**62),
            leave_after=rng.randint(1, most) if rng.random() < leave else None,
            penalties={"repetition_penalty": 1.3, "frequency_penalty": 0.5} if i % 3 else {},
            top_logprobs=i % 5 if i % 5 < 3 else None,
        )
        works.append(work)
        stems.append(prompt + work.expected())
    return works


async def one(client: AsyncClient, work: Work, delay: float = 0.0) -> Answer:
    await asyncio.sleep(delay)
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    async with client.generate(
        token_ids=work.prompt,
        max_tokens=work.max_tokens,
        temperature=work.temperature,
        seed=work.seed,
        ignore_eos=True,
        top_logprobs=work.top_logprobs,
        **work.penalties,
    ) as generation:
        async for chunk in generation:
            tokens.extend(chunk.token_ids)
            logprobs.extend(chunk.logprobs)
            if chunk.usage is not None:
                return Answer(tuple(tokens), chunk.usage.cached_tokens, tuple(logprobs))
            if work.leave_after is not None and len(tokens) >= work.leave_after:
                break
    return Answer(tuple(tokens), None, tuple(logprobs))


def outputs(answers: Sequence[Answer]) -> list[object]:
    return [(answer.tokens, answer.logprobs) for answer in answers]


async def at_random(address: str, works: Sequence[Work], spread: float) -> list[Answer]:
    rng = random.Random(len(works))
    async with AsyncClient(address) as client:
        return await asyncio.gather(*(one(client, w, rng.uniform(0, spread)) for w in works))


async def idle_status(address: str) -> ServerStatus:
    async with AsyncClient(address) as client:
        while (status := await client.status()).running_requests + status.waiting_requests:
            await asyncio.sleep(0.05)
        return status


def test_1000_requests_that_share_get_their_own_tokens_and_every_hit_is_told() -> None:
    worker = ("--vocab-size", str(VOCAB), "--max-model-len", "128", "--num-blocks", "160")
    small = ("--block-size", "4", "--max-rows", "48", "--max-step-tokens", "256", "--step-ms", "1")
    stay = family(random.Random(1), REQUESTS // 2, 60, 20, leave=0)
    some_leave = family(random.Random(2), REQUESTS // 2, 60, 30, leave=0.3)
    with running(simulate=True, worker=(*worker, *small)) as servers:
        told = asyncio.run(at_random(servers.address, stay, 1.0))
        status = asyncio.run(idle_status(servers.address))
        cached = [answer.cached or 0 for answer in told]
        assert sum(cached) == status.prefix_hits
        assert sum(len(work.prompt) for work in stay) == status.prefix_queries
        # How much depends on who is at work when the others come.
        assert status.prefix_hits > status.prefix_queries / 10
        for work, found in zip(stay, cached, strict=True):
            assert found % 4 == 0
            assert found < len(work.prompt)
        told += asyncio.run(at_random(servers.address, some_leave, 1.0))
        status = asyncio.run(idle_status(servers.address))
    for work, answer in zip([*stay, *some_leave], told, strict=True):
        expected, made = tuple(work.expected()), len(answer.tokens)
        assert answer.tokens == expected[:made]
        right = right_logprobs(work.prompt, expected, VOCAB, work.top_logprobs)
        assert answer.logprobs == right[:made]
        assert made == len(expected) or (answer.cached is None and work.leave_after is not None)
    assert status.free_blocks == status.usable_blocks == 159
    assert status.cached_blocks > 0


def test_a_tiny_llamas_tokens_are_the_same_with_and_without_and_when_its_worker_dies(
    tmp_path: Path,
) -> None:
    """Exact in float32 on the CPU."""
    model = tiny_llama(tmp_path)
    works = family(random.Random(3), 20, 40, 20, leave=0)
    worker = (
        "--block-size",
        "4",
        "--threads",
        "1",
        "--num-blocks",
        "22",
    )  # for one or two requests
    whole = ("--no-tokenizer", "--no-prefix-cache")
    with running(model=model, worker=worker, scheduler=whole) as servers:
        expected = asyncio.run(at_random(servers.address, works, 0.0))
        status = asyncio.run(idle_status(servers.address))
    assert {answer.cached for answer in expected} == {0}
    assert (status.prefix_queries, status.cached_blocks) == (0, 0)

    async def with_a_death(address: str, pid: int) -> list[Answer]:
        async with AsyncClient(address) as client:
            calls = [asyncio.create_task(one(client, work)) for work in works]
            before = (await client.status()).output_tokens
            while (await client.status()).output_tokens < before + 50:
                await asyncio.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
            answers = await asyncio.gather(*calls)
            # Where all had their last tokens before it died, its successor is yet to come.
            while not (await client.status()).worker_restarts:
                await asyncio.sleep(0.01)
            return answers

    chunks = ("--pipeline-depth", "3", "--max-step-tokens", "24")
    with supervised(model=model, worker=worker, scheduler=chunks) as servers:
        answers = asyncio.run(at_random(servers.address, works, 0.0))
        assert outputs(answers) == outputs(expected)
        # For want of blocks: the death, if all have their tokens by then, preempts nobody.
        assert asyncio.run(idle_status(servers.address)).preemptions > 0
        answers = asyncio.run(with_a_death(servers.address, servers.child("worker").pid))
        status = asyncio.run(idle_status(servers.address))
    assert outputs(answers) == outputs(expected)
    assert status.worker_restarts == 1
    assert status.prefix_hits > 100


def test_a_dump_of_a_worker_whose_rows_share_blocks_replays_to_the_same_crash(
    tmp_path: Path,
) -> None:
    """What was shared before the dump begins, and by whom, is made up for."""
    poison = 99
    dumps = ("--dump-dir", str(tmp_path), "--dump-prompts", "--crash-tokens", str(poison))
    size = ("--block-size", "4", "--num-blocks", "120", "--max-rows", "8", "--step-ms", "1")
    worker = ("--vocab-size", "100", "--avoid-tokens", str(poison), *size, *dumps)
    rng = random.Random(4)
    stems = [[rng.randrange(poison) for _ in range(60)] for _ in range(3)]
    works = [
        Work(tuple(rng.choice(stems)[: rng.randint(9, 60)]), rng.randint(1, 30), 0.0, 0)
        for _ in range(150)
    ]

    async def load(address: str) -> None:
        async with AsyncClient(address) as client:
            # All at once: rows are full to the end, and the last request is the poisonous one.
            calls = [asyncio.create_task(one(client, work)) for work in works]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            while (await client.status()).steps < 150:
                await asyncio.sleep(0.01)
            calls.append(asyncio.create_task(one(client, Work((*stems[0][:40], poison), 1, 0, 0))))
            while not list(tmp_path.glob("*.bin")):
                await asyncio.sleep(0.01)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    with supervised(simulate=True, worker=worker) as servers:
        asyncio.run(load(servers.address))
    first = min(tmp_path.glob("*.bin"))
    steps = steps_of(first)
    assert sum(len(entry.result.result.tokens) // 4 for entry in entries(first)) > 200
    assert any(
        new.tokens_in_pool for one in steps if not one.synthetic for new in one.step.new_rows
    )
    assert any(new.tokens_in_pool for one in steps if one.synthetic for new in one.step.new_rows)
    done = replay_process(first)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is fatal: RuntimeError: a crash token" in done.stdout
    assert done.stdout.endswith("equal: the same tokens, flags and refusals, and the same end\n")
