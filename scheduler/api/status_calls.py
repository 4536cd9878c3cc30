"""GetStatus and WatchStatus."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator

from nanoserve.v1 import inference_pb2
from scheduler.api.errors import CallError, invalid
from scheduler.api.shared_snapshots import ANSWER_SECONDS, SharedSnapshots
from scheduler.api.status import StatusRequest, status_response
from scheduler.core.front_end import EnginePort, FailureKind, Snapshot

# Seconds; told in inference.proto, as is the number of watchers.
DEFAULT_INTERVAL = 1.0
SHORTEST_INTERVAL = 0.1
LONGEST_INTERVAL = 60.0
# Each costs this process a message each interval, and the engine nothing of its own.
MAX_WATCHERS = 64
RETRY_SECONDS = 10.0

_Write = Callable[[inference_pb2.WatchStatusResponse], Awaitable[None]]


class StatusCalls:
    """Tells of one engine. Used on one event loop only."""

    def __init__(self, engine: EnginePort, model: str, handles: Iterator[int]) -> None:
        self._engine = engine
        self._model = model
        self._snapshots = SharedSnapshots(engine, handles)
        self._started_at = time.monotonic()
        self._num_watchers = 0
        self._draining = False
        self._ended = False
        self._changed = asyncio.Event()

    def deliver(self, snapshot: Snapshot) -> None:
        """An answer of the engine. Called on the event loop."""
        self._snapshots.deliver(snapshot)

    def start_draining(self) -> None:
        """Every status says so, watchers' at once."""
        self._draining = True
        self.readiness_changed()

    def readiness_changed(self) -> None:
        """Watchers are told at once."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end_watches(self) -> None:
        """Each watcher gets the status once more, and its call ends well."""
        self._ended = True
        self.readiness_changed()

    async def get(self, asked: StatusRequest) -> inference_pb2.GetStatusResponse:
        if not (asked.include_rows or asked.include_block_map or asked.include_latencies):
            return self._from_memory()
        fields = await self._snapshots.take(asked.include_block_map)
        response = self._from_memory()
        if fields is None:
            response.missing_reason = f"the engine did not answer within {ANSWER_SECONDS:g} s"
            return response
        fields.add_to(response, asked)
        if asked.include_block_map and not response.block_owners:
            response.missing_reason = "no worker has connected yet"
        return response

    async def watch(self, request: inference_pb2.WatchStatusRequest, write: _Write) -> None:
        """Writes until the server has drained. Raises CallError."""
        interval = _interval(request)
        if self._num_watchers >= MAX_WATCHERS:
            message = (
                f"{self._num_watchers} calls of WatchStatus are open, and the limit is "
                f"{MAX_WATCHERS}; end one, or call GetStatus"
            )
            raise CallError(FailureKind.QUEUE_FULL, message, retry_after=RETRY_SECONDS)
        self._num_watchers += 1
        try:
            await self._watch(request, interval, write)
        finally:
            self._num_watchers -= 1

    async def _watch(
        self, request: inference_pb2.WatchStatusRequest, interval: float, write: _Write
    ) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + interval
        while not self._ended:
            changed = self._changed  # before the status, so that no change falls between
            await write(inference_pb2.WatchStatusResponse(status=await self.get(request)))
            if (now := loop.time()) >= due:
                due = max(due + interval, now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await changed.wait()
        # Without the engine, which ends too.
        await write(inference_pb2.WatchStatusResponse(status=self._from_memory()))

    def _from_memory(self) -> inference_pb2.GetStatusResponse:
        now = time.monotonic()
        status = self._engine.status()
        uptime = now - self._started_at
        return status_response(status, self._model, self._draining, uptime, now)


def _interval(request: inference_pb2.WatchStatusRequest) -> float:
    """Raises CallError."""
    if not request.HasField("interval_seconds"):
        return DEFAULT_INTERVAL
    interval = request.interval_seconds
    if not SHORTEST_INTERVAL <= interval <= LONGEST_INTERVAL:
        limits = f"{SHORTEST_INTERVAL:g} <= interval_seconds <= {LONGEST_INTERVAL:g}"
        raise invalid("interval_seconds", f"is {interval:g}, must be {limits}")
    return interval
