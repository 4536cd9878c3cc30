"""SIGTERM and SIGINT. Imports nothing of ours: handlers come before anything slow."""

from __future__ import annotations

import os
import queue
import signal
from typing import Any


class StopSignals:
    """Puts the first signal into `events`; the second ends the process at once.

    As process 1 of a container, a process without a handler would ignore them. `events` may
    carry other things too, so that one thread can wait for whichever comes first.
    """

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._came = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def _take(self, number: int, _frame: object) -> None:
        if self._came:
            os._exit(128 + number)
        self._came = True
        self.events.put(signal.Signals(number))
