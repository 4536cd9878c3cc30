"""The gRPC service: validate, hand over, answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import NoReturn

import grpc

from nanoserve.v1 import worker_pb2, worker_pb2_grpc
from worker.session import Session, SessionError
from worker.step_loop import StepLoop
from worker.stream import StepStream, StreamEnd, step_failed

log = logging.getLogger(__name__)

EPOCH_KEY = "nanoserve-epoch"


class WorkerService(worker_pb2_grpc.WorkerServiceServicer):
    """WorkerService of worker.proto over a session and a step loop."""

    def __init__(self, session: Session, loop: StepLoop) -> None:
        self._session = session
        self._loop = loop
        # Held over a change of epoch, incarnation or stream, so that they change as one.
        self._lock = threading.Lock()
        self._stream: StepStream | None = None
        self.draining = False

    def Connect(
        self, request: worker_pb2.ConnectRequest, context: grpc.ServicerContext
    ) -> worker_pb2.ConnectResponse:
        self._refuse_if_draining(context)
        try:
            with self._lock:
                response, newer = self._session.connect(request)
                if newer:
                    self._end_stream(grpc.StatusCode.ABORTED, f"epoch {request.epoch} connected")
        except SessionError as error:
            _abort(context, error)
        log.info("scheduler with epoch %d connected from %s", request.epoch, context.peer())
        return response

    def Execute(
        self, request_iterator: Iterator[worker_pb2.Step], context: grpc.ServicerContext
    ) -> Iterator[worker_pb2.StepResult]:
        self._refuse_if_draining(context)
        epoch = _epoch(context)
        stream = StepStream(self._session)
        try:
            with self._lock:
                self._session.check_epoch(epoch)
                self._end_stream(grpc.StatusCode.ABORTED, "a newer stream took over")
                self._stream = stream
        except SessionError as error:
            _abort(context, error)
        if not context.add_callback(stream.over):  # gone already
            self._close(stream)
            return
        threading.Thread(
            target=stream.read, args=(request_iterator, self._loop), name="step-reader", daemon=True
        ).start()
        try:
            end = yield from stream.answers()
        except Exception as error:  # waiting for the device failed
            self._fail(stream, error)
            end = step_failed(error)
        finally:
            self._close(stream)
        if end.code is not grpc.StatusCode.OK:
            context.abort(end.code, end.details)

    def GetStatus(
        self, request: worker_pb2.WorkerServiceGetStatusRequest, context: grpc.ServicerContext
    ) -> worker_pb2.WorkerServiceGetStatusResponse:
        del request, context
        return self._session.status()

    def Reset(
        self, request: worker_pb2.ResetRequest, context: grpc.ServicerContext
    ) -> worker_pb2.ResetResponse:
        try:
            with self._lock:
                incarnation = self._session.reset(request.epoch)
                self._end_stream(grpc.StatusCode.ABORTED, "Reset was called")
        except SessionError as error:
            _abort(context, error)
        log.info("reset: incarnation %016x", incarnation)
        return worker_pb2.ResetResponse(incarnation=incarnation)

    def drain(self) -> None:
        """Refuses new calls of Connect and Execute; the open stream goes on."""
        self.draining = True

    def idle_seconds(self) -> float:
        """How long the open stream has asked for nothing; infinite without one."""
        with self._lock:
            return self._stream.idle_seconds() if self._stream else float("inf")

    def end_stream(self, code: grpc.StatusCode, details: str) -> None:
        with self._lock:
            self._end_stream(code, details)

    def _end_stream(self, code: grpc.StatusCode, details: str) -> None:
        if self._stream:
            self._stream.end(StreamEnd(code, details))
            self._stream = None

    def _fail(self, stream: StepStream, error: Exception) -> None:
        """Not on the thread that is to send the stream's end first."""

        def end_process() -> None:
            stream.wait_until_over()
            self._loop.on_fatal(error)

        threading.Thread(target=end_process, name="fatal", daemon=True).start()

    def _close(self, stream: StepStream) -> None:
        stream.ended = True
        with self._lock:
            if self._stream is stream:
                self._stream = None

    def _refuse_if_draining(self, context: grpc.ServicerContext) -> None:
        if self.draining:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the worker is shutting down")


def _abort(context: grpc.ServicerContext, error: SessionError) -> NoReturn:
    log.error("refused %s: %s", context.peer(), error)
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


def _epoch(context: grpc.ServicerContext) -> int:
    value = str(dict(context.invocation_metadata()).get(EPOCH_KEY, ""))
    if not value.isdecimal():
        context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"metadata {EPOCH_KEY} is {value!r}, must be the epoch of Connect in decimal",
        )
    return int(value)
