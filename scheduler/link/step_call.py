"""One Execute call: steps in through a queue, results out by iteration."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import grpc

from nanoserve.v1 import worker_pb2, worker_pb2_grpc

EPOCH_KEY = "nanoserve-epoch"


class StepCall:
    """An open stream. gRPC's own thread takes steps from the queue, so `put` never blocks."""

    def __init__(self, channel: grpc.Channel, epoch: int) -> None:
        self._steps: queue.SimpleQueue[worker_pb2.Step | None] = queue.SimpleQueue()
        self._call = worker_pb2_grpc.WorkerServiceStub(channel).Execute(
            iter(self._steps.get, None), metadata=[(EPOCH_KEY, str(epoch))]
        )

    def put(self, step: worker_pb2.Step) -> None:
        self._steps.put(step)

    def results(self) -> Iterator[worker_pb2.StepResult]:
        """Blocks for each result; raises grpc.RpcError when the stream breaks."""
        return iter(self._call)

    def cancel(self) -> None:
        """Ends the call from any thread, and the thread that takes steps."""
        self._steps.put(None)
        self._call.cancel()
