"""Random steps through a worker, for recordings, and recordings played again."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import grpc
import numpy as np
from google.protobuf import proto

from nanoserve.v1 import worker_pb2, worker_pb2_grpc
from scheduler.link.encoder import encode_step
from tests.worker.asking import ask
from tests.worker.running_worker import Stream, connect
from tests.worker.toy_scheduler import ToyRequest, ToyScheduler, random_requests
from tests.worker.worker_process import ROOT, WorkerProcess
from worker.__main__ import replay_parser
from worker.geometry import Geometry
from worker.recording import Entry, RecordingReader
from worker.recording_flags import recorded_options
from worker.replay import Replay
from worker.replay_report import ReplayReport

# As small_geometry() of running_worker.py.
FLAGS = (
    *("--listen", "127.0.0.1:0", "--block-size", "4", "--num-blocks", "40", "--max-rows", "8"),
    *("--max-model-len", "64", "--max-step-tokens", "64", "--max-decode-steps", "4"),
    *("--max-steps-in-flight", "4"),
)
SIMULATED = ("--simulate", "--vocab-size", "1000", *FLAGS)


class Player:
    """A toy scheduler on a stream of its own, with up to three steps in flight."""

    def __init__(
        self,
        stub: worker_pb2_grpc.WorkerServiceStub,
        geometry: Geometry,
        seed: int = 0,
        epoch: int = 5,
        requests: Sequence[ToyRequest] = (),
        asks: bool = False,
    ) -> None:
        """`asks`: for penalties and log-probabilities, as tests/worker/asking.py says."""
        self._asks = asks
        self.incarnation = connect(stub, epoch).incarnation
        rng = random.Random(seed)
        self.scheduler = ToyScheduler(geometry, self.incarnation, rng)
        most = min(geometry.max_model_len, (geometry.num_blocks - 1) * geometry.block_size)
        self.requests = list(requests) or random_requests(rng, 20, geometry.vocab_size, most)
        self.scheduler.waiting = list(self.requests)
        self.stream = Stream(stub, epoch)
        self._in_flight: deque[int] = deque()

    def play(self, steps: int = 10**6) -> None:
        """Steps until all requests are done, or `steps` of them; all are answered then."""
        for _ in range(steps):
            if not self.scheduler.busy:
                break
            self.send()
            if len(self._in_flight) == 3:
                self.take()
        while self._in_flight:
            self.take()

    def send(self) -> None:
        plan = self.scheduler.plan()
        step = encode_step(plan)
        self.stream.send(ask(step) if self._asks else step)
        self._in_flight.append(plan.step_id)

    def take(self) -> None:
        result = next(self.stream.call)
        assert not result.HasField("refusal"), result.refusal.message
        self.scheduler.answer(self._in_flight.popleft(), np.frombuffer(result.tokens, "<i4"))


def stub_of(worker: WorkerProcess) -> worker_pb2_grpc.WorkerServiceStub:
    return worker_pb2_grpc.WorkerServiceStub(grpc.insecure_channel(worker.address()))


def entries(path: Path) -> list[Entry]:
    """All of a recording, its start included."""
    reader = RecordingReader(path)
    found = [Entry(start=reader.start), *reader]
    assert not reader.cut_off
    return found


def steps_of(path: Path) -> list[worker_pb2.RecordedStep]:
    return [entry.step for entry in entries(path) if entry.HasField("step")]


def write(path: Path, messages: Sequence[Entry]) -> Path:
    with path.open("wb") as file:
        for message in messages:
            proto.serialize_length_prefixed(message, file)
    return path


def replayed(path: Path, *arguments: str) -> ReplayReport:
    """What the command finds, in this process."""
    reader = RecordingReader(path)
    options = recorded_options(replay_parser(), [str(path), *arguments], reader.start)
    replay = Replay(reader, options)
    replay.run()
    replay.report.cut_off = reader.cut_off
    return replay.report


def replay_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`python -m worker replay ARGUMENTS`"""
    return subprocess.run(
        [sys.executable, "-m", "worker", "replay", *map(str, arguments)],
        cwd=ROOT,
        env={"PYTHONPATH": "protos", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
