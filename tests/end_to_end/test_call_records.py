"""Scheduler and worker processes: clients, /metrics and the log tell the same of every call."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.local.child import Child
from nanoserve.v1 import inference_pb2, inference_pb2_grpc
from tests.end_to_end.servers import start, wait_for_health
from tests.waiting import SECONDS, wait_for
from worker.simulated_tokens import expected_tokens

SERVING = 1
VOCAB = 300
PROMPT = [1, 2, 3]
ROWS, QUEUE = 3, 2
LONG = 15_000  # tokens: some minutes


class Pair:
    def __init__(self, folder: Path) -> None:
        self.address, worker = f"unix:{folder}/public.sock", f"unix:{folder}/worker.sock"
        simulation = ("--simulate", "--vocab-size", str(VOCAB), "--step-ms", "10")
        limits = ("--max-rows", str(ROWS), "--max-model-len", "16000")
        link = ("--worker", worker, "--listen", self.address, "--max-queue", str(QUEUE))
        watched = ("--metrics-listen", "127.0.0.1:0", "--log-format", "json")
        self.worker = start(
            "worker", *simulation, *limits, "--listen", worker, "--metrics-listen", "off", "--debug"
        )
        self.scheduler = start("scheduler", "--no-tokenizer", *link, *watched)
        self.lines: dict[str, None] = {}  # each once, in order; the child keeps the last ones

    @property
    def children(self) -> list[Child]:
        return [self.scheduler, self.worker]

    def log(self) -> list[dict]:
        self.lines.update(dict.fromkeys(self.scheduler.lines))
        return [json.loads(line) for line in self.lines]

    def ended(self) -> list[dict]:
        return [line for line in self.log() if line["message"] == "request ended"]

    def load(self) -> tuple[float, float]:
        """Requests that run and that wait."""
        metrics = self.metrics()
        return metrics["num_requests_running",], metrics["num_requests_waiting",]

    def _url(self) -> str | None:
        found = (re.match(r"metrics at (\S+)", line["message"]) for line in self.log())
        return next((match[1] for match in found if match), None)

    def metrics(self) -> dict[tuple[str, ...], float]:
        url = wait_for(self._url, "the log tells where they are")
        with urllib.request.urlopen(url, timeout=SECONDS) as response:
            families = text_string_to_metric_families(response.read().decode())
        return {
            (s.name.removeprefix("nanoserve_"), *s.labels.values()): s.value
            for family in families
            for s in family.samples
        }


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    wait_for_health(pair.address, SERVING)
    yield pair
    for child in pair.children:
        child.stop(0, threading.Event())


class Calls:
    """What one client saw."""

    def __init__(self, address: str, channels: contextlib.ExitStack) -> None:
        channel = channels.enter_context(grpc.insecure_channel(address))
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self.tokens = 0
        self.begun = 0  # calls that got a token

    def start(
        self, timeout: float = 60, metadata: tuple[tuple[str, str], ...] = (), **fields: object
    ) -> grpc.Future:
        prompt = inference_pb2.TokenIds(ids=PROMPT)
        request = inference_pb2.GenerateRequest(token_ids=prompt, temperature=0, **fields)
        return self._stub.Generate(request, timeout=timeout, metadata=metadata)

    def end(self, call: grpc.Future) -> str:
        """Its status."""
        got = 0
        with contextlib.suppress(grpc.RpcError):
            for response in call:
                got += len(response.token_ids)
        if call.code() is grpc.StatusCode.OK:
            self.tokens += got
            self.begun += 1
        return call.code().name


def test_every_end_is_counted_and_logged_as_its_client_saw_it(pair: Pair) -> None:
    stop = expected_tokens(PROMPT, 3, VOCAB)[2]
    with contextlib.ExitStack() as channels:
        calls = Calls(pair.address, channels)
        seen = Counter(calls.end(calls.start(max_tokens=5)) for _ in range(4))
        seen[calls.end(calls.start(stop_token_ids=[stop]))] += 1
        seen[calls.end(calls.start(max_tokens=50_000))] += 1
        seen[calls.end(calls.start(request_id='\x1b[31m\n{"'))] += 1
        # So late that a server that stands still for seconds has heard of the call before.
        seen[calls.end(calls.start(timeout=4, max_tokens=LONG))] += 1
        wait_for(lambda: pair.load() == (0, 0), "all have ended")
        # All places are taken by calls that their clients will cut off.
        leaving = [calls.start(max_tokens=LONG) for _ in range(ROWS)]
        for call in leaving:
            next(call)  # it has a row
        leaving += [calls.start(max_tokens=LONG) for _ in range(QUEUE)]
        wait_for(lambda: pair.load() == (ROWS, QUEUE), "rows and queue are full")
        seen[calls.end(calls.start())] += 1
        for call in leaving:
            call.cancel()
        seen.update(map(calls.end, leaving))
    assert seen == {
        "OK": 5,
        "INVALID_ARGUMENT": 2,
        "RESOURCE_EXHAUSTED": 1,
        "DEADLINE_EXCEEDED": 1,
        "CANCELLED": ROWS + QUEUE,
    }
    wait_for(lambda: len(pair.ended()) == seen.total(), "all are logged")
    assert Counter(line["status"] for line in pair.ended()) == seen
    wait_for(lambda: pair.load() == (0, 0), "the engine has none")
    metrics = pair.metrics()
    outcomes = {key[1]: value for key, value in metrics.items() if key[0] == "requests_total"}
    assert {name: value for name, value in outcomes.items() if value} == {
        "length": 4,
        "stop": 1,
        "invalid": 2,
        "queue_full": 1,
        "deadline": 1,
        "cancelled": ROWS + QUEUE,
    }
    refusals = {key[1]: value for key, value in metrics.items() if "refused" in key[0] and value}
    assert refusals == {"invalid": 2, "queue_full": 1}
    # Of calls that were cut off, the log knows what was passed on.
    cut = [line for line in pair.ended() if line["outcome"] in ("cancelled", "deadline")]
    begun = [line for line in cut if line["output_tokens"]]
    assert len(begun) >= ROWS
    tokens = calls.tokens + sum(line["output_tokens"] for line in begun)
    assert metrics["generation_tokens_total",] == tokens
    assert metrics["prompt_tokens_total",] == len(PROMPT) * (calls.begun + len(begun))
    assert all(line["queue_ms"] >= 0 for line in cut)


def test_a_clients_trace_reaches_the_logs_of_both_processes(pair: Pair) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    parent = f"00-{trace_id}-00f067aa0ba902b7-01"
    with contextlib.ExitStack() as channels:
        calls = Calls(pair.address, channels)
        call = calls.start(max_tokens=3, request_id="r1", metadata=(("traceparent", parent),))
        assert calls.end(call) == "OK"
    wait_for(lambda: pair.ended(), "it is logged")
    assert [line["trace_id"] for line in pair.ended()] == [trace_id]
    line = f"request 'r1' takes row 0; trace: {parent}"
    wait_for(lambda: line in "\n".join(pair.worker.lines), "the worker logged it")
