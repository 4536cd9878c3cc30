"""The hub between front ends and engine as it is, with the times of each request in it."""

from __future__ import annotations

import time
from pathlib import Path

from deploy.bench.profile.trace_file import TraceFile
from scheduler.core.front_end import EventBatch, Submission
from scheduler.fronts.hub import Hub
from scheduler.fronts.messages import Message

# Moments in ns: that its call came to the front end, that it was read in the engine's process, and
# that the engine began to hand its first token to the front end.
COLUMNS = ("called", "received", "delivering")


class TracedHub(Hub):
    """Writes them to `path` when it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._trace = TraceFile(COLUMNS)
        self._waiting: dict[int, tuple[int, int]] = {}  # for a first token, by handle

    def received(self, number: int, message: Message) -> None:
        if isinstance(message, Submission):
            called = round(message.arrival * 1e9)
            self._waiting[message.handle] = called, time.monotonic_ns()
        super().received(number, message)

    def deliver(self, batch: EventBatch) -> None:
        delivering = time.monotonic_ns()
        super().deliver(batch)
        for handle in self._waiting.keys() & set(batch.handles.tolist()):
            self._trace.add(*self._waiting.pop(handle), delivering)

    def save(self) -> None:
        self._trace.save(self._path)
