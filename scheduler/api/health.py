"""grpc.health.v1: readiness under "" and the service's name, liveness under its own.

grpcio-health-checking's servicer is not used: there a watcher that reads slowly holds up
every change, and one that leaves cuts the others off.
"""

from __future__ import annotations

import asyncio
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from nanoserve.v1 import inference_pb2
from scheduler.api.errors import CallError
from scheduler.api.method_handlers import decoded
from scheduler.core.front_end import EnginePort

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
READINESS = ("", INFERENCE.full_name)
LIVENESS = "nanoserve.liveness"
# The engine's loop turns at least once a second. A loop that stood for this long is stuck.
STUCK_SECONDS = 10.0
REFRESH_SECONDS = 0.5

_Context = grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]


class HealthService(health_pb2_grpc.HealthServicer):
    """Answers from memory; `refresh` looks at the engine. Used on the event loop only."""

    def __init__(self, engine: EnginePort, stuck_seconds: float = STUCK_SECONDS) -> None:
        self._engine = engine
        self._stuck_seconds = stuck_seconds
        self._draining = False
        self._serving: dict[str, bool] = {}
        self._changed = asyncio.Event()
        self.refresh()

    def refresh(self) -> None:
        """Takes the engine's readiness and liveness over and wakes watchers of a change."""
        status = self._engine.status()
        alive = time.monotonic() - status.loop_turned_at < self._stuck_seconds
        ready = status.ready and alive and not self._draining
        serving = {**dict.fromkeys(READINESS, ready), LIVENESS: alive}
        if serving != self._serving:
            self._serving = serving
            self._changed.set()
            self._changed = asyncio.Event()

    def start_draining(self) -> None:
        """Not ready any more, whatever the engine says. Still alive."""
        self._draining = True
        self.refresh()

    async def keep_fresh(self) -> None:
        """Refreshes for ever: a stuck engine tells nobody."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            self.refresh()

    # A request is None if it could not be decoded.

    async def Check(
        self, request: health_pb2.HealthCheckRequest | None, context: _Context
    ) -> health_pb2.HealthCheckResponse:
        service = await _service(request, context)
        serving = self._serving.get(service)
        if serving is None:
            known = ", ".join(map(repr, self._serving))
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"service {service!r}: not one of {known}"
            )
        return _response(serving)

    async def Watch(self, request: health_pb2.HealthCheckRequest | None, context: _Context) -> None:
        service = await _service(request, context)
        last: health_pb2.HealthCheckResponse | None = None
        while True:
            changed = self._changed
            response = _response(self._serving.get(service))
            if response != last:
                await context.write(response)
                last = response
            await changed.wait()


async def _service(request: health_pb2.HealthCheckRequest | None, context: _Context) -> str:
    """The service that the call asks about."""
    try:
        return decoded(request, health_pb2.HealthCheckRequest).service
    except CallError as error:
        await context.abort(error.code, error.message)


def _response(serving: bool | None) -> health_pb2.HealthCheckResponse:
    """None: a service that this server does not know."""
    response = health_pb2.HealthCheckResponse
    if serving is None:
        return response(status=response.SERVICE_UNKNOWN)
    return response(status=response.SERVING if serving else response.NOT_SERVING)
