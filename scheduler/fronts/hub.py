"""The engine's front end that stands for many in other processes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scheduler.core.front_end import (
    Abort,
    CallTotals,
    EnginePort,
    EngineStatus,
    EventBatch,
    FailureKind,
    SnapshotRequest,
    Submission,
)
from scheduler.fronts.frames import frame
from scheduler.fronts.handles import COUNT_BITS
from scheduler.fronts.messages import Message, MessageError
from scheduler.fronts.totals import SummedTotals


def split(batch: EventBatch) -> dict[int, EventBatch]:
    """The part of each front end, by its number, in the batch's order."""
    numbers = batch.handles >> COUNT_BITS
    parts: dict[int, EventBatch] = {}
    found = sorted(set(numbers.tolist()))
    if len(found) == 1:
        parts[found[0]] = EventBatch(batch.handles, batch.token_ids, logprobs=batch.logprobs)
        found = []
    for number in found:
        chosen = numbers == number
        parts[number] = EventBatch(
            batch.handles[chosen],
            batch.token_ids[chosen],
            logprobs=batch.logprobs and batch.logprobs.of(chosen),
        )
    for event in batch.ends:
        _part(parts, event.handle).ends.append(event)
    for snapshot in batch.snapshots:
        _part(parts, snapshot.handle).snapshots.append(snapshot)
    return parts


def _part(parts: dict[int, EventBatch], handle: int) -> EventBatch:
    number = handle >> COUNT_BITS
    if number not in parts:
        parts[number] = EventBatch(np.empty(0, np.int64), np.empty(0, np.int32))
    return parts[number]


class Hub:
    """Joins front ends, which number their requests apart (handles.py), to one engine.

    `deliver` and `status_changed` are called in turns of the engine's loop,
    on this event loop's thread or another, all else on the event loop. What both touch are dicts
    and sets, by operations of which each is atomic.
    """

    def __init__(self) -> None:
        self._engine: EnginePort
        self._sends: dict[int, Callable[[bytes], None]] = {}
        # Handles whose final event has not come and is of use to somebody.
        self._open: dict[int, set[int]] = {}
        self._totals = SummedTotals()
        self._told: EngineStatus | None = None

    def attach(self, engine: EnginePort) -> None:
        """Before all else."""
        self._engine = engine

    # Called in turns of the engine's loop.

    def deliver(self, batch: EventBatch) -> None:
        for number, part in split(batch).items():
            send = self._sends.get(number)
            if send is None:
                continue  # it has died
            frames = frame(part)
            if part.ends:
                self._open.get(number, set()).difference_update(end.handle for end in part.ends)
                # Whoever hears of an end may ask at once what is free.
                frames = frame(self._engine.status()) + frames
            send(frames)

    def status_changed(self, status: EngineStatus) -> None:
        self._broadcast(frame(status))

    # Called on the loop.

    def tell_status(self) -> None:
        """Tells all the engine's status, if its loop has turned since the last call."""
        status = self._engine.status()
        if status is not self._told:
            self._told = status
            self._broadcast(frame(status))

    def join(self, number: int, send: Callable[[bytes], None]) -> None:
        """`send` takes whole frames, from any thread, and never blocks."""
        self._open[number] = set()
        self._sends[number] = send
        send(frame(self._engine.status()))

    def leave(self, number: int) -> None:
        """Front end `number` has died: so have its calls."""
        del self._sends[number]
        handles = list(self._open.pop(number))
        self._totals.leave(number, len(handles))
        self._engine.report(self._totals.sum())
        for handle in handles:
            self._engine.abort(Abort(handle, FailureKind.CANCELLED))

    def received(self, number: int, message: Message) -> None:
        """A message of front end `number`, in its order. Raises MessageError for one about a
        request that is not its own."""
        match message:
            case Submission():
                _check_owner(number, message.handle)
                self._open[number].add(message.handle)
                self._engine.submit(message)
            case Abort():
                _check_owner(number, message.handle)
                if isinstance(message.reason, FailureKind):
                    self._open[number].discard(message.handle)  # its front end counts it as ended
                self._engine.abort(message)
            case SnapshotRequest():
                _check_owner(number, message.handle)
                self._engine.ask_snapshot(message)
            case CallTotals():
                self._totals.report(number, message)
                self._engine.report(self._totals.sum())

    def _broadcast(self, frames: bytes) -> None:
        for send in list(self._sends.values()):
            send(frames)


def _check_owner(number: int, handle: int) -> None:
    if handle >> COUNT_BITS != number:
        raise MessageError(f"handle {handle}, which is not one of front end {number}")
