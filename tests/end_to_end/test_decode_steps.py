"""Steps of several decodes through real processes: the same tokens and text in fewer steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from deploy.bench.worker_process import WorkerProcess
from nanoserve import AsyncClient, FinishReason, ServerStatus, TokenLogprobs
from tests.simulated_logprobs import right_logprobs
from tests.tiny_llama import tiny_llama
from tests.worker.recorded_steps import replay_process, steps_of
from worker.simulated_tokens import expected_tokens

VOCAB = 500
PATIENT = ("tests.end_to_end.patient_scheduler",)


async def at_once(address: str) -> ServerStatus:
    """Requests of 80 tokens down to 10, greedy ones and others; one leaves after 20 of its 80."""

    async def one(client: AsyncClient, i: int) -> None:
        how = {"temperature": 0.8 * (i % 2), "seed": i, "presence_penalty": 0.5 * (i % 3)}
        prompt, count, top = [i + 1, 7, 9], 80 - 10 * i, (None, 0, 2, 5)[i % 4]
        answer = await client.generate(
            token_ids=prompt, max_tokens=count, timeout=60, top_logprobs=top, **how
        ).collect()
        expected = expected_tokens(prompt, count, VOCAB, **how)
        assert list(answer.token_ids) == expected
        assert answer.logprobs == right_logprobs(prompt, expected, VOCAB, top)
        assert answer.usage.output_tokens == count

    async def leave(client: AsyncClient) -> None:
        got: list[int] = []
        async with client.generate(token_ids=[3], max_tokens=80, temperature=0) as generation:
            async for chunk in generation:
                got += chunk.token_ids
                if len(got) >= 20:
                    break
        assert got == expected_tokens([3], 80, VOCAB)[: len(got)]

    async with AsyncClient(address) as client:
        await asyncio.gather(*(one(client, i) for i in range(8)), leave(client))
        while (status := await client.status()).running_requests + status.steps_in_flight:
            await asyncio.sleep(0.02)
        return status


def test_requests_get_their_tokens_in_fewer_steps_and_a_recording_of_them_replays(
    tmp_path: Path,
) -> None:
    recording = tmp_path / "steps.bin"
    flags = ("--vocab-size", str(VOCAB), "--step-ms", "0.3", "--record", str(recording))
    several = ("--no-tokenizer", "--audit", "--decode-steps", "4", "--pipeline-depth", "3")
    with (
        WorkerProcess(("--simulate", *flags)) as worker,
        worker.scheduler(several, PATIENT) as address,
    ):
        status = asyncio.run(at_once(address))
    steps = [one.step for one in steps_of(recording)]
    repeated = Counter(max(1, step.decode_steps) for step in steps)
    assert max(repeated) == 4
    assert repeated[4] > 10
    assert status.steps == len(steps)
    sampled = sum(step.samples.count(1) * max(1, step.decode_steps) for step in steps)
    assert status.output_tokens + status.discarded_tokens == sampled
    assert status.discarded_tokens <= 3 * 4  # of the one that left
    assert status.free_blocks == status.usable_blocks
    done = replay_process(recording)
    assert done.returncode == 0, done.stdout + done.stderr
    # 1 + top_logprobs of each token of those that asked.
    equal = "equal: the same tokens, flags and refusals, 700 log-probabilities within 0.001\n"
    assert done.stdout.endswith(equal)


Told = tuple[str, FinishReason, int, tuple[TokenLogprobs, ...]]


async def texts(address: str) -> tuple[list[Told], ServerStatus]:
    """Text, finish reason, output tokens and log-probabilities of each of eight prompts, and the
    status afterwards."""
    async with AsyncClient(address) as client:
        calls = [
            client.generate(
                f"{i} times",
                max_tokens=60,
                temperature=0.9 * (i % 2),
                seed=i,
                stop=stop,
                repetition_penalty=1.0 + 0.3 * (i % 3),
                frequency_penalty=0.1 * (i % 4),
                top_logprobs=2 if i % 5 else None,
            )
            for i, stop in enumerate([[], [], ["e"], ["a", "t"], [" "], ["o"], [], ["x"]])
        ]
        answers = await asyncio.gather(*(call.collect() for call in calls))
        while (status := await client.status()).steps_in_flight:
            await asyncio.sleep(0.02)
        told = [(a.text, a.finish_reason, a.usage.output_tokens, a.logprobs) for a in answers]
        return told, status


def test_a_tiny_llamas_text_is_the_same_with_four_decodes_a_step_as_with_one(
    tmp_path: Path,
) -> None:
    """Exact in float32 on the CPU."""
    model, recording = tiny_llama(tmp_path / "model"), tmp_path / "steps.bin"
    pool = ("--dtype", "float32", "--block-size", "4", "--num-blocks", "70", "--threads", "1")
    flags = ("--model", str(model), "--audit", "--pipeline-depth", "3")
    with WorkerProcess(
        ("--model", str(model), "--device", "cpu", *pool, "--record", str(recording))
    ) as worker:
        with worker.scheduler(flags) as address:
            expected, once = asyncio.run(texts(address))
        with worker.scheduler((*flags, "--decode-steps", "4"), PATIENT) as address:
            found, repeated = asyncio.run(texts(address))
    assert found == expected
    assert {reason for _, reason, _, _ in found} == {FinishReason.STOP, FinishReason.LENGTH}
    assert repeated.output_tokens == once.output_tokens == sum(count for _, _, count, _ in found)
    for i, (_, _, count, logprobs) in enumerate(found):
        assert len(logprobs) == (count if i % 5 else 0)
    counts = [max(1, one.step.decode_steps) for one in steps_of(recording)]
    assert len(counts) == once.steps + repeated.steps
    assert set(counts[: once.steps]) == {1}
    assert max(counts[once.steps :]) == 4
    assert repeated.steps < once.steps
