"""A simulated worker served over real gRPC inside the test's process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from nanoserve.tls import TlsFiles
from nanoserve.v1 import worker_pb2, worker_pb2_grpc
from tests.waiting import SECONDS
from worker.address import ListenAddress
from worker.executor import Executor
from worker.geometry import Geometry
from worker.recorder import Recorders
from worker.server import WorkerServer
from worker.service import WorkerService
from worker.session import Session
from worker.simulate import SimulatedExecutor, SimulationOptions
from worker.step_loop import StepLoop


def small_geometry(**changes: object) -> Geometry:
    values: dict[str, object] = {
        "device": "simulated",
        "fingerprint": "f" * 64,
        "vocab_size": 1000,
        "max_model_len": 64,
        "num_layers": 1,
        "num_kv_heads": 1,
        "head_dim": 8,
        "dtype": "float32",
        "num_blocks": 40,
        "block_size": 4,
        "bytes_per_block": 32,
        "max_rows": 8,
        "max_step_tokens": 64,
        "max_steps_in_flight": 4,
        "max_decode_steps": 4,
    }
    return Geometry(**(values | changes))  # type: ignore[arg-type]


@dataclass
class RunningWorker:
    """What a test may look at."""

    address: str
    executor: Executor
    session: Session
    service: WorkerService
    server: WorkerServer
    fatal: list[BaseException]
    failed: threading.Event  # set once `fatal` has an error

    @contextmanager
    def stub(self) -> Iterator[worker_pb2_grpc.WorkerServiceStub]:
        with grpc.insecure_channel(
            self.address, [("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            yield worker_pb2_grpc.WorkerServiceStub(channel)


@contextmanager
def running_worker(
    executor: Executor | None = None,
    *,
    address: str = "127.0.0.1:0",
    check_slots: bool = True,
    options: SimulationOptions | None = None,
    files: TlsFiles | None = None,
    recorders: Recorders | None = None,
    **geometry: object,
) -> Iterator[RunningWorker]:
    """Serves until the block ends. `executor` None makes a simulated one."""
    recorders = recorders or Recorders()
    made = executor or SimulatedExecutor(small_geometry(**geometry), options)
    ready: queue.SimpleQueue[Geometry] = queue.SimpleQueue()
    fatal: list[BaseException] = []
    failed = threading.Event()

    def fail(error: BaseException) -> None:
        fatal.append(error)
        failed.set()

    loop = StepLoop(lambda: made, ready.put, fail)
    loop.start()
    recorders.start(ready.get(timeout=60))
    session = Session(made.geometry, check_slots=check_slots, recorders=recorders)
    service = WorkerService(session, loop)
    server = WorkerServer(service, ListenAddress(address), files)
    bound = server.start()
    try:
        yield RunningWorker(bound, made, session, service, server, fatal, failed)
    finally:
        server.stop()
        loop.stop()
        recorders.stop()


class Stream:
    """An Execute stream that a test drives step by step."""

    def __init__(self, stub: worker_pb2_grpc.WorkerServiceStub, epoch: int) -> None:
        self._steps: queue.SimpleQueue[worker_pb2.Step | None] = queue.SimpleQueue()
        self.call = stub.Execute(
            iter(self._steps.get, None), metadata=[("nanoserve-epoch", str(epoch))], timeout=60
        )

    def send(self, *steps: worker_pb2.Step) -> None:
        for step in steps:
            self._steps.put(step)

    def ask(self, step: worker_pb2.Step) -> worker_pb2.StepResult:
        self.send(step)
        return next(self.call)

    def half_close(self) -> None:
        self._steps.put(None)

    def cancel(self) -> None:
        self._steps.put(None)
        self.call.cancel()


def connect(
    stub: worker_pb2_grpc.WorkerServiceStub, epoch: int = 5, **fields: object
) -> worker_pb2.ConnectResponse:
    request = worker_pb2.ConnectRequest(epoch=epoch, protocol_version=1)
    for name, value in fields.items():
        setattr(request, name, value)
    return stub.Connect(request, timeout=SECONDS)
