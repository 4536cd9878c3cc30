"""Requests that crash or hang the worker, kills, and steps that fail, with real processes."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from deploy.local.child import Child
from nanoserve import Client, Generation, NanoserveError
from tests.end_to_end.servers import start, supervised, wait_for_health
from tests.tiny_llama import tiny_llama
from tests.waiting import wait_for
from worker.simulated_tokens import expected_tokens

VOCAB = 1000
POISON = 999


@pytest.fixture(autouse=True)
def restart_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.local.restarts.FIRST_DELAY", 0.1)
    monkeypatch.setattr("deploy.local.restarts.LONGEST_DELAY", 0.1)


@pytest.mark.parametrize(
    ("fault", "losses"),
    [(("--crash-tokens",), 3), (("--step-timeout", "1", "--hang-tokens"), 4)],
    ids=["crash", "hang"],
)
def test_a_poisonous_request_fails_alone_and_the_others_get_their_tokens(
    fault: tuple[str, ...], losses: int
) -> None:
    """A step that fails is said; one that hangs ends the worker without a word."""
    # Nobody else's output may turn poisonous.
    worker = ("--vocab-size", str(VOCAB), "--avoid-tokens", str(POISON), "--step-ms", "5")
    with (
        supervised(
            simulate=True,
            worker=(*worker, *fault, str(POISON)),
            scheduler=("--step-timeout", "3"),
        ) as servers,
        Client(servers.address) as client,
    ):
        prompts = [[i, 7, i] for i in range(6)]
        prompts[3][1] = POISON
        streams = [
            client.generate(token_ids=prompt, max_tokens=80, temperature=0, timeout=90)
            for prompt in prompts
        ]
        for i, (prompt, stream) in enumerate(zip(prompts, streams, strict=True)):
            if i == 3:
                with pytest.raises(NanoserveError, match=f"ended {losses} times in a row") as end:
                    stream.collect()
                assert end.value.code.name == "INTERNAL"
                continue
            right = expected_tokens(prompt, 80, VOCAB, avoid=frozenset({POISON}))
            assert list(stream.collect().token_ids) == right
        status = client.status()
    assert status.free_blocks == status.usable_blocks
    assert status.output_tokens == 5 * 80


def test_kills_that_meet_requests_alone_over_and_over_are_a_pause() -> None:
    """Twice both together and once each alone: nobody is to blame."""
    # A step ends before it is killed only if we stand still for so long.
    worker = ("--vocab-size", str(VOCAB), "--step-ms", "20000")
    with supervised(simulate=True, worker=worker) as servers, Client(servers.address) as client:
        prompts = [[1, 7], [2, 7]]
        streams = [
            client.generate(token_ids=prompt, max_tokens=3, temperature=0, timeout=90)
            for prompt in prompts
        ]
        killed: set[int] = set()

        def next_in_a_step() -> int:
            status = client.status()
            incarnation = status.worker_incarnation
            return incarnation if status.steps_in_flight and incarnation not in killed else 0

        for left in range(3, -1, -1):
            killed.add(wait_for(next_in_a_step, "another worker computes a step"))
            child = servers.child("worker")
            if not left:
                child._command = [*child._command, "--step-ms", "1"]  # of the last one
            os.kill(child.pid, signal.SIGKILL)
        for prompt, stream in zip(prompts, streams, strict=True):
            assert list(stream.collect().token_ids) == expected_tokens(prompt, 3, VOCAB)
        assert client.status().worker_restarts == 4


def wait_until_said(scheduler: Child, worker: Child, words: str) -> None:
    """And until the worker has ended."""
    wait_for(lambda: worker.exit_status is not None, "the worker has ended")
    assert worker.exit_status == 1
    said = re.compile(rf"DATA_LOSS: a step failed: \w+: {words}")
    wait_for(lambda: any(map(said.search, scheduler.lines)), f"it said {words}")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_streams_go_on_after_want_of_memory_and_an_error_of_the_device(
    device: str, tmp_path: Path
) -> None:
    """Either ends the worker at once, which says why."""
    model = str(tiny_llama(tmp_path))
    address, link = f"unix:{tmp_path}/public.sock", f"unix:{tmp_path}/worker.sock"
    flags = ("--model", model, "--device", device, "--listen", link, "--num-blocks", "40")
    flags = (*flags, "--metrics-listen", "off")
    common = ("--no-tokenizer", "--audit", "--metrics-listen", "off")
    scheduler = start("scheduler", "--model", model, "--listen", address, "--worker", link, *common)
    children = [scheduler]
    try:
        failing = "tests.end_to_end.failing_worker"
        children.append(start(failing, "memory", "25", *flags))
        wait_for_health(address, health_pb2.HealthCheckResponse.SERVING)
        with Client(address) as client:

            def ask(temperature: float) -> Generation:
                options = {"max_tokens": 100, "temperature": temperature, "seed": 5}
                return client.generate(token_ids=list(range(20)), ignore_eos=True, **options)

            streams = [ask(0.0), ask(0.9)]
            wait_until_said(scheduler, children[-1], r"CUDA out of memory\.")
            children.append(start(failing, "device", "25", *flags))
            wait_until_said(scheduler, children[-1], "CUDA error: an illegal memory access")
            children.append(start("worker", *flags))
            tokens = [stream.collect().token_ids for stream in streams]
            assert tokens == [ask(temperature).collect().token_ids for temperature in (0.0, 0.9)]
            assert [len(ids) for ids in tokens] == [100, 100]
            assert client.status().worker_restarts == 2
    finally:
        for child in children:
            child.stop(0, threading.Event())
