"""The engine's front end that stands for many in other processes."""

from __future__ import annotations

import dataclasses
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
from scheduler.fronts.messages import Message
from scheduler.fronts.totals import SummedTotals

# A handle of the engine's is the front end's number above, its own handle below.
NUMBER_BITS = 22
OWN_BITS = 63 - NUMBER_BITS
_OWN_MASK = (1 << OWN_BITS) - 1


def split(batch: EventBatch) -> dict[int, EventBatch]:
    """The part of each front end, by its number, with its own handles, in the batch's order."""
    numbers, handles = batch.handles >> OWN_BITS, batch.handles & _OWN_MASK
    parts: dict[int, EventBatch] = {}
    found = sorted(set(numbers.tolist()))
    if len(found) == 1:
        parts[found[0]] = EventBatch(handles, batch.token_ids, logprobs=batch.logprobs)
        found = []
    for number in found:
        chosen = numbers == number
        parts[number] = EventBatch(
            handles[chosen],
            batch.token_ids[chosen],
            logprobs=batch.logprobs and batch.logprobs.of(chosen),
        )
    for event in batch.ends:
        own = dataclasses.replace(event, handle=event.handle & _OWN_MASK)
        _part(parts, event.handle).ends.append(own)
    for snapshot in batch.snapshots:
        answer = dataclasses.replace(snapshot, handle=snapshot.handle & _OWN_MASK)
        _part(parts, snapshot.handle).snapshots.append(answer)
    return parts


def _part(parts: dict[int, EventBatch], handle: int) -> EventBatch:
    number = handle >> OWN_BITS
    if number not in parts:
        parts[number] = EventBatch(np.empty(0, np.int64), np.empty(0, np.int32))
    return parts[number]


class Hub:
    """Joins front ends to one engine.

    Front ends have numbers, never used twice, so that no event reaches the successor of the
    one it was meant for. `deliver` and `status_changed` are called in turns of the engine's loop,
    on this event loop's thread or another, all else on the event loop. What both touch are dicts
    and sets, by operations of which each is atomic.
    """

    def __init__(self) -> None:
        self._engine: EnginePort
        self._sends: dict[int, Callable[[bytes], None]] = {}
        # Handles (the engine's) whose final event neither came nor is of use to anybody.
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
                ended = {self._handle(number, end.handle) for end in part.ends}
                self._open.get(number, set()).difference_update(ended)
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
        """A message of front end `number`, in its order."""
        match message:
            case Submission():
                handle = self._handle(number, message.handle)
                self._open[number].add(handle)
                self._engine.submit(dataclasses.replace(message, handle=handle))
            case Abort():
                handle = self._handle(number, message.handle)
                if isinstance(message.reason, FailureKind):
                    self._open[number].discard(handle)  # its front end counts it as ended
                self._engine.abort(dataclasses.replace(message, handle=handle))
            case SnapshotRequest():
                handle = self._handle(number, message.handle)
                self._engine.ask_snapshot(dataclasses.replace(message, handle=handle))
            case CallTotals():
                self._totals.report(number, message)
                self._engine.report(self._totals.sum())

    @staticmethod
    def _handle(number: int, own: int) -> int:
        return number << OWN_BITS | own

    def _broadcast(self, frames: bytes) -> None:
        for send in list(self._sends.values()):
            send(frames)
