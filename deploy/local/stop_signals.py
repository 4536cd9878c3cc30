"""Being asked to stop: once means cleanly, twice means at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class StopSignals:
    """Catches SIGINT, SIGTERM and SIGHUP from its making on; main thread only."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.asked_twice = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._caught)

    @contextlib.contextmanager
    def leave_interrupts_to_command(self) -> Iterator[None]:
        """Ignores SIGINT meanwhile: a command in our terminal gets it too and decides.

        A handler that does nothing, since an ignored signal would stay ignored in the
        command.
        """
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _caught(self, *_: object) -> None:
        if self.asked.is_set():
            self.asked_twice.set()
        self.asked.set()


class Unasked(StopSignals):
    """For a program that leaves the signals as they are: never asked to stop."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.asked_twice = threading.Event()
