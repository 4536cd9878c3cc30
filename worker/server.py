"""The worker's gRPC server: the service, health and reflection on one port."""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from nanoserve import tls
from nanoserve.v1 import worker_pb2, worker_pb2_grpc
from worker.address import ListenAddress
from worker.server_options import SERVER_OPTIONS
from worker.service import WorkerService

SERVICE_NAME = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name

# Execute holds a thread while its stream is open: one stream, one that is being replaced, and
# room for control, health and reflection.
_HANDLER_THREADS = 16

# A stream that asked for nothing for so long has nothing running on this worker: with
# requests running, the next step follows within a step's time.
_IDLE_SECONDS = 1.0


class WorkerServer:
    """Serves from `start` on; made once the executor's warm-up has worked, so that health
    is SERVING from the first call."""

    def __init__(
        self, service: WorkerService, address: ListenAddress, files: tls.TlsFiles | None = None
    ) -> None:
        """With `files` every caller, of health too, must have a certificate of their CA."""
        self._files = files
        self._service = service
        self._address = address
        self._health = health.HealthServicer()
        self._server = grpc.server(
            ThreadPoolExecutor(_HANDLER_THREADS, thread_name_prefix="grpc"), options=SERVER_OPTIONS
        )
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    def start(self) -> str:
        """Returns the address that clients dial. Raises OSError if it cannot be bound."""
        self._address.check_free()
        try:
            port = self._add_port()
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._address.text}: {error}") from error
        for name in ("", SERVICE_NAME):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._server.start()
        return self._address.with_port(port)

    def _add_port(self) -> int:
        if self._files is None:
            return self._server.add_insecure_port(self._address.text)
        credentials = tls.server_credentials(self._files)
        return self._server.add_secure_port(self._address.text, credentials)

    def drain(self, timeout: float) -> None:
        """Stops taking new streams and ends once the open one asks for nothing more, or
        after `timeout` seconds."""
        self._health.enter_graceful_shutdown()
        self._service.drain()
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._service.idle_seconds() < _IDLE_SECONDS:
            time.sleep(0.02)
        self.stop()

    def stop(self) -> None:
        """Ends the open stream with UNAVAILABLE and everything else at once."""
        if self._files is not None:
            self._files.close()
        self._service.end_stream(grpc.StatusCode.UNAVAILABLE, "the worker is shutting down")
        self._server.stop(grace=0.5).wait()
        if self._address.is_unix:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._address.path)
