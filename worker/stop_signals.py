"""SIGTERM and SIGINT. Imports nothing of ours: handlers come before anything slow."""

from __future__ import annotations

import os
import queue
import signal
import threading
from typing import Any


class StopSignals:
    """Puts the first signal into `events`; the second ends the process at once.

    As process 1 of a container, a process without a handler would ignore them. `events` may
    carry other things too, so that one thread can wait for whichever comes first.

    A thread reads the signals from a pipe, into which the interpreter's own handler writes them. A
    handler in Python would be run by the main thread only, which does not notice a signal that
    comes right before it blocks in `events.get`.
    """

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pipe, end = os.pipe()
        os.set_blocking(end, False)
        signal.set_wakeup_fd(end)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def _listen(self) -> None:
        self.events.put(signal.Signals(os.read(self._pipe, 1)[0]))
        os._exit(128 + os.read(self._pipe, 1)[0])
