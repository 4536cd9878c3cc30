"""The engine, as a front end in another process sees it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import socket
import time
from collections.abc import Callable

import numpy as np

from scheduler.core.front_end import (
    Abort,
    CallTotals,
    EngineStatus,
    EventBatch,
    Failure,
    FailureKind,
    FrontEnd,
    SnapshotRequest,
    Submission,
)
from scheduler.fronts.connection import Connection
from scheduler.fronts.frames import frame
from scheduler.fronts.messages import Alive, Drain, Message, Started

log = logging.getLogger(__name__)

# How often what was counted since is told, and how often that the loop turns.
REPORT_SECONDS = 0.1
ALIVE_SECONDS = 1.0
_GONE = "the engine's process is gone"
_FLUSH_SECONDS = 0.5


class RemoteEngine:
    """EnginePort over a socket. Each submission gets its one final event, also if the engine's
    process dies: then from here.

    To be made on the event loop and, like the front end that it serves, used there only.
    `on_drain` is called when the front end shall end, `on_lost` when the engine is.
    """

    def __init__(
        self,
        sock: socket.socket,
        front_end: FrontEnd,
        on_drain: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._front_end = front_end
        self._on_drain = on_drain
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._status = _unknown_status()
        self._turned_at = -math.inf  # the engine's loop, by the last status
        self._open: set[int] = set()  # handles without their final event
        self._totals: CallTotals | None = None  # the front end's own, as it counts
        self._told_totals = b""
        self._told_alive = 0.0  # time.monotonic(), seconds
        self._lost = False
        self._connection = Connection(sock, self._receive, self._end)

    def start(self) -> None:
        """Tells the engine's process that calls are served."""
        self._connection.send(frame(Started()))
        self._beat()

    def stop(self) -> None:
        """Nothing: the engine goes on without this front end. See `close`."""

    async def close(self) -> None:
        """Sends what is still to be said, at the front end's end."""
        self._tell_totals()
        await self._connection.flush(_FLUSH_SECONDS)

    def submit(self, submission: Submission) -> None:
        self._open.add(submission.handle)
        if self._lost:
            self._loop.call_soon(self._fail_open)
        self._connection.send(frame(submission))

    def abort(self, abort: Abort) -> None:
        self._connection.send(frame(abort))

    def status(self) -> EngineStatus:
        """At most some 50 ms old while the engine's process turns."""
        return self._status

    def ask_snapshot(self, request: SnapshotRequest) -> None:
        self._connection.send(frame(request))

    def report(self, totals: CallTotals) -> None:
        """Told within REPORT_SECONDS, and so is what is counted in it later."""
        self._totals = totals

    def drain(self, deadline: float) -> None:
        """Nothing: others use the engine too, and whoever drains them all has told it."""

    def _receive(self, message: Message) -> None:
        match message:
            case EventBatch():
                self._open.difference_update(end.handle for end in message.ends)
                self._front_end.deliver(message)
            case EngineStatus():
                self._take_status(message)
            case Drain():
                self._on_drain()

    def _take_status(self, status: EngineStatus) -> None:
        # Two threads send it: an older one may come after a younger.
        if status.loop_turned_at < self._turned_at:
            return
        before, self._status, self._turned_at = self._status, status, status.loop_turned_at
        if _readiness(status) != _readiness(before):
            self._front_end.status_changed(status)

    def _beat(self) -> None:
        if self._lost:
            return
        self._tell_totals()
        now = time.monotonic()
        if now - self._told_alive >= ALIVE_SECONDS:
            self._told_alive = now
            self._connection.send(frame(Alive()))
        self._loop.call_later(REPORT_SECONDS, self._beat)

    def _tell_totals(self) -> None:
        if self._totals is None:
            return
        totals = frame(self._totals)
        if totals != self._told_totals:
            self._told_totals = totals
            self._connection.send(totals)

    def _end(self, reason: str) -> None:
        log.error("%s: %s", _GONE, reason)
        self._lost = True
        self._status = dataclasses.replace(self._status, ready=False, reason=_GONE)
        self._front_end.status_changed(self._status)
        self._fail_open()
        self._on_lost()

    def _fail_open(self) -> None:
        failures = [Failure(handle, FailureKind.UNAVAILABLE, _GONE) for handle in self._open]
        self._open.clear()
        no_tokens = np.empty(0, np.int64), np.empty(0, np.int32)
        self._front_end.deliver(EventBatch(*no_tokens, [*failures]))


def _readiness(status: EngineStatus) -> tuple[object, ...]:
    return status.ready, status.reason, status.limits


def _unknown_status() -> EngineStatus:
    """Until the first one comes: an engine that turns and is not ready."""
    return EngineStatus(
        ready=False,
        reason="the engine has not told its status yet",
        limits=None,
        worker_incarnation=0,
        worker_device="",
        running=0,
        waiting=0,
        free_blocks=0,
        steps_in_flight=0,
        steps=0,
        prompt_tokens=0,
        output_tokens=0,
        discarded_tokens=0,
        preemptions=0,
        recomputed_tokens=0,
        worker_restarts=0,
        loop_turned_at=time.monotonic(),
    )
