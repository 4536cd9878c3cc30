"""A scheduler with several front ends and a simulated worker, for a test."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil

from deploy.local.child import Child
from nanoserve import TokenLogprobs
from nanoserve.output import chunk_from
from nanoserve.v1 import inference_pb2 as pb
from nanoserve.v1 import inference_pb2_grpc as pb_grpc
from tests.end_to_end.servers import start
from tests.simulated_logprobs import right_logprobs
from tests.waiting import SECONDS, wait_for
from worker.simulated_tokens import expected_tokens

VOCAB = 1000
BLOCKS = 4000
PROMPT = [1, 2, 3]
# Tokens of a request that is there until it is cancelled: some minutes at 10 ms a step.
LONG = 15_000


class FrontEnds:
    """The processes, started; `stop` ends what is left of them."""

    def __init__(
        self, folder: Path, count: int, *flags: str, worker_flags: tuple[str, ...] = ()
    ) -> None:
        worker = f"unix:{folder}/worker.sock"
        self.worker = start(
            "worker",
            *("--simulate", "--vocab-size", str(VOCAB), "--num-blocks", str(BLOCKS + 1)),
            *("--max-model-len", str(LONG + 100), "--step-ms", "1", "--metrics-listen", "off"),
            *("--listen", worker, *worker_flags),
        )
        self.scheduler = start_scheduler(
            worker, "--frontends", str(count), "--metrics-listen", "127.0.0.1:0", *flags
        )
        self.address = wait_for(lambda: listening(self.scheduler), "the port is known")
        self._metrics = wait_for(
            lambda: found_in_log(self.scheduler, r"metrics at (http://\S+)"), "the other too"
        )
        self.count = count
        wait_for(lambda: len(self.processes()) == count, "all are started")
        wait_for(self.ready, "it is ready")

    def metrics(self) -> dict[str, float]:
        """What /metrics says, by name with labels."""
        with urllib.request.urlopen(self._metrics, timeout=SECONDS) as response:
            text = response.read().decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if line[0] != "#"]
        return {name: float(value) for name, _, value in lines}

    def processes(self) -> list[psutil.Process]:
        """The front ends that serve."""
        with_port = f":{self.address.rpartition(':')[2]}"
        return [
            child
            for child in psutil.Process(self.scheduler.pid).children()
            if any(f":{c.laddr.port}" == with_port for c in connections(child, "LISTEN"))
        ]

    def connected(self) -> list[int]:
        """How many connections each front end has."""
        return [len(connections(child, "ESTABLISHED")) for child in self.processes()]

    def ready(self) -> bool:
        with channel(self.address) as opened:
            stub = pb_grpc.InferenceServiceStub(opened)
            return bool(stub.GetStatus(pb.GetStatusRequest(), timeout=SECONDS).ready)

    def stop(self) -> None:
        for child in (self.scheduler, self.worker):
            child.stop(0, threading.Event())


def start_scheduler(worker: str, *flags: str) -> Child:
    own = ("--no-tokenizer", "--audit", "--worker", worker, "--listen", "127.0.0.1:0")
    own += ("--metrics-listen", "127.0.0.1:0")
    return start("scheduler", *own, *flags)


def listening(scheduler: Child) -> str | None:
    """Its address, once it is in the log."""
    return found_in_log(scheduler, r"listening on (127\.0\.0\.1:\d+)")


def found_in_log(scheduler: Child, pattern: str) -> str | None:
    """The first group, if the last lines have it."""
    found = re.search(pattern, log_of(scheduler))
    return found[1] if found else None


def log_of(scheduler: Child) -> str:
    """The last lines."""
    return "\n".join(scheduler.lines)


def connections(process: psutil.Process, state: str) -> list:
    """Over TCP; none of a process that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [c for c in process.net_connections("tcp") if c.status == state]
    return []


def channel(address: str) -> grpc.Channel:
    """With a connection of its own, where channels of one process would share one."""
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


def request(count: int, prompt: Sequence[int] = PROMPT, **fields: object) -> pb.GenerateRequest:
    ids = pb.TokenIds(ids=prompt)
    return pb.GenerateRequest(token_ids=ids, max_tokens=count, temperature=0, **fields)


@dataclass
class Totals:
    """What clients have seen."""

    outcomes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    output_tokens: int = 0


async def one_stream(stub: pb_grpc.InferenceServiceStub, seed: int, totals: Totals) -> None:
    """Runs one call, a bad one for some seeds. Raises if a token is wrong."""
    prompt, count = [seed % VOCAB, seed // 7 % VOCAB], 20 + seed % 50
    expected = expected_tokens(prompt, count, VOCAB)
    stop = [expected[9]] if seed % 5 == 1 else []
    if stop:
        expected = expected[: expected.index(stop[0]) + 1]
    if seed % 20 == 3:
        prompt = [VOCAB]
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    top = (None, 0, 4)[seed % 3]
    asked = request(count, prompt, stop_token_ids=stop, top_logprobs=top)
    try:
        async for response in stub.Generate(asked):
            tokens.extend(response.token_ids)
            logprobs.extend(chunk_from(response).logprobs)
    except grpc.aio.AioRpcError as error:
        totals.outcomes[error.code().name.lower()] += 1
        return
    totals.outcomes["stop" if stop else "length"] += 1
    assert tokens == expected
    assert tuple(logprobs) == right_logprobs(prompt, expected, VOCAB, top)
    totals.prompt_tokens += len(prompt)
    totals.output_tokens += len(tokens)


async def run_streams(address: str, count: int, channels: int) -> Totals:
    """So many calls at once over so many connections."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    opened = [grpc.aio.insecure_channel(address, options=options) for _ in range(channels)]
    stubs = [pb_grpc.InferenceServiceStub(channel) for channel in opened]
    totals = Totals()
    calls = (one_stream(stubs[seed % channels], seed, totals) for seed in range(count))
    await asyncio.gather(*calls)
    for channel in opened:
        await channel.close()
    return totals
