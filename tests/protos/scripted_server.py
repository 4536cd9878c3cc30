"""An InferenceService that plays a script, on a unix socket or a port of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import status_pb2

from nanoserve.v1 import inference_pb2 as pb
from nanoserve.v1 import inference_pb2_grpc as pb_grpc
from tests.waiting import SECONDS

Handler = Callable[[pb.GenerateRequest, grpc.ServicerContext], Iterator[pb.GenerateResponse]]
Watcher = Callable[[pb.WatchStatusRequest, grpc.ServicerContext], Iterator[pb.GetStatusResponse]]


class ScriptedServer(pb_grpc.InferenceServiceServicer):
    """Answers Generate with `handler`, GetStatus with `status` and WatchStatus with `watcher`;
    keeps the requests.

    `cancelled` is set when a call that `hold` answers was cancelled by its client.
    """

    def __init__(
        self, handler: Handler | None = None, credentials: grpc.ServerCredentials | None = None
    ) -> None:
        self.handler = handler or say("Hello", " world")
        self.status = pb.GetStatusResponse(
            ready=True,
            model="tiny",
            max_model_len=64,
            vocab_size=256,
            max_rows=4,
            block_size=16,
            usable_blocks=10,
            free_blocks=7,
            worker_incarnation=255,
            worker_device="cpu",
            uptime_seconds=3725.5,
        )
        self.watcher: Watcher = lambda _request, _context: iter([self.status])
        self.requests: list[pb.GenerateRequest] = []
        self.status_requests: list[pb.GetStatusRequest | pb.WatchStatusRequest] = []
        self.deadlines: list[float | None] = []
        self.cancelled = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        pb_grpc.add_InferenceServiceServicer_to_server(self, self._server)
        if credentials is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self.address = f"127.0.0.1:{port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=None).wait()

    def Generate(
        self, request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        self.requests.append(request)
        self.deadlines.append(context.time_remaining())
        yield from self.handler(request, context)

    def GetStatus(
        self, request: pb.GetStatusRequest, _context: grpc.ServicerContext
    ) -> pb.GetStatusResponse:
        self.status_requests.append(request)
        return self.status

    def WatchStatus(
        self, request: pb.WatchStatusRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchStatusResponse]:
        self.status_requests.append(request)
        for status in self.watcher(request, context):
            yield pb.WatchStatusResponse(status=status)

    def watch_for_ever(
        self, _request: pb.WatchStatusRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GetStatusResponse]:
        """A watcher: the status, then nothing until the call ends."""
        if not context.add_callback(self.cancelled.set):
            self.cancelled.set()
        yield self.status
        assert self.cancelled.wait(SECONDS)

    def hold(
        self, request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        """A handler: one piece, then nothing until the call ends."""
        # Not after the yield: the library does not come back for more once it knows that
        # the client is gone.
        if not context.add_callback(self.cancelled.set):
            self.cancelled.set()
        yield pb.GenerateResponse(request_id=request.request_id, text="Hel", token_ids=[1])
        assert self.cancelled.wait(SECONDS)


def say(*pieces: str, last: pb.GenerateResponse | None = None) -> Handler:
    """A handler that sends each piece with one token, and then `last`."""

    def handler(
        request: pb.GenerateRequest, _context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        for index, piece in enumerate(pieces):
            yield pb.GenerateResponse(
                request_id=request.request_id, text=piece, token_ids=[index + 1]
            )
        end = pb.GenerateResponse(
            request_id=request.request_id,
            token_ids=[2],
            finish_reason=pb.FINISH_REASON_STOP,
            matched_token_id=2,
            usage=pb.Usage(
                prompt_tokens=5, output_tokens=len(pieces) + 1, total_seconds=0.5, cached_tokens=4
            ),
        )
        yield last or end

    return handler


def fail(
    code: grpc.StatusCode, message: str, *details: Message, after: tuple[str, ...] = ()
) -> Handler:
    """A handler that sends the pieces of `after`, and then ends with a status."""

    def handler(
        _request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        for piece in after:
            yield pb.GenerateResponse(text=piece, token_ids=[1])
        status = status_pb2.Status(code=code.value[0], message=message)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        if details:
            context.set_trailing_metadata(
                (("grpc-status-details-bin", status.SerializeToString()),)
            )
        context.abort(code, message)

    return handler
