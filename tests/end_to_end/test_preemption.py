"""Two requests that do not fit together get what each gets alone, through real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from deploy.bench.worker_process import WorkerProcess
from nanoserve import AsyncClient, Completion
from tests.tiny_llama import tiny_llama

# Of 5 blocks each, and the pool has 8.
REQUESTS = [
    {"token_ids": [17, 3, 200, 3, 99, 42], "temperature": 0, "top_logprobs": 2},
    {"token_ids": [5, 5, 81, 7, 160, 9], "temperature": 0.8, "seed": 11, "top_logprobs": 0},
]
EVERY = {"max_tokens": 14, "ignore_eos": True, "repetition_penalty": 1.3, "frequency_penalty": 0.2}
WORKER = ("--num-blocks", "9", "--block-size", "4", "--dtype", "float32", "--threads", "1")
CHUNKS = ("--max-step-tokens", "3", "--audit")


async def ask(address: str, worker_pid: int, *indices: int) -> dict[int, Completion]:
    """What some requests get, by their index. The worker stands still until all have come."""
    async with AsyncClient(address) as client:
        os.kill(worker_pid, signal.SIGSTOP)
        try:
            calls = [client.generate(**REQUESTS[i], **EVERY) for i in indices]
            while True:
                status = await client.status()
                if status.running_requests + status.waiting_requests == len(indices):
                    break
                await asyncio.sleep(0.01)
        finally:
            os.kill(worker_pid, signal.SIGCONT)
        answers = await asyncio.gather(*(call.collect() for call in calls))
        return dict(zip(indices, answers, strict=True))


def told(answers: dict[int, Completion]) -> dict[int, tuple[object, ...]]:
    """Ids, text, log-probabilities, why it ended, and usage as far as time and company leave it."""
    return {
        i: (a.token_ids, a.text, a.logprobs, a.finish_reason, a.matched, a.usage.prompt_tokens)
        for i, a in answers.items()
    }


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory):
    folder = tiny_llama(tmp_path_factory.mktemp("model"))
    with WorkerProcess(("--model", str(folder), "--device", "cpu", *WORKER)) as worker:
        yield worker, folder


@pytest.mark.parametrize("cache", [(), ("--no-prefix-cache",)], ids=["cache", "no cache"])
def test_penalties_and_log_probabilities_go_on_over_a_preemption(
    worker: tuple[WorkerProcess, Path], cache: tuple[str, ...]
) -> None:
    """Exact in float32 on the CPU."""
    process, folder = worker
    with process.scheduler(("--model", str(folder), *CHUNKS, *cache)) as address:
        pid = process.child.pid
        alone = asyncio.run(ask(address, pid, 0)) | asyncio.run(ask(address, pid, 1))
        together = [asyncio.run(ask(address, pid, *order)) for order in ((0, 1), (1, 0))]
    for i, answer in alone.items():
        assert answer.usage.preemptions == 0
        assert len(answer.token_ids) == len(answer.logprobs) == answer.usage.output_tokens == 14
        assert {len(one.top) for one in answer.logprobs} == {REQUESTS[i]["top_logprobs"]}
    for answers in together:
        assert told(answers) == told(alone)
        assert sum(answer.usage.preemptions for answer in answers.values()) > 0
