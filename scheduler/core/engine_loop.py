"""The engine's loop: who turns it, and when."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0

Message = TypeVar("Message")


class Turning(Protocol):
    """What is done in the loop. Only one thread at a time calls it."""

    def turn(self) -> None:
        """Takes messages of the inbox, not necessarily all, and does all there is to do."""
        ...

    @property
    def pause(self) -> float | None:
        """Seconds until there is something to do though no message comes; None if there is not."""
        ...

    @property
    def in_a_hurry(self) -> bool:
        """Whether whoever brings a message shall turn the loop himself."""
        ...

    @property
    def is_over(self) -> bool: ...


class EngineLoop(Generic[Message]):
    """Turns when a message comes, when it is time, and once a second.

    It has a thread of its own for that. But waking a thread may take about as long as a turn, and
    where nothing hides that, the thread that brings a message turns the loop. It never waits for
    another that is at it: that one looks for messages again when it is done.
    """

    def __init__(self, turning: Turning, on_fatal: Callable[[Exception], None] | None) -> None:
        """`on_fatal` gets what ended the loop, on the thread that turned it."""
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._turning = turning
        self._on_fatal = on_fatal
        self._lock = threading.Lock()  # held over each turn
        self._alarm: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes the loop's own thread
        self._in_a_hurry = False  # as the last turn left it
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def runs(self) -> bool:
        """Whether it has begun and not ended."""
        return self._thread.is_alive()

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join()

    def bring(self, message: Message) -> None:
        """From any thread."""
        self.inbox.put(message)
        while self._in_a_hurry and self._turn_if_messages():
            pass
        if not self._in_a_hurry or self._turning.pause is not None or self._is_over:
            self._alarm.put(None)

    @property
    def _is_over(self) -> bool:
        return self._failed or self._turning.is_over

    def _run(self) -> None:
        while True:
            with self._lock:
                self._turn()
            while self._turn_if_messages():
                pass
            if self._is_over:
                return
            self._rest()

    def _rest(self) -> None:
        pause = self._turning.pause
        with contextlib.suppress(queue.Empty):
            seconds = HEARTBEAT_SECONDS if pause is None else min(pause, HEARTBEAT_SECONDS)
            self._alarm.get(timeout=seconds)
            while True:
                self._alarm.get_nowait()

    def _turn_if_messages(self) -> bool:
        """Whether there was a turn: not while another thread is at it."""
        if self._is_over or self.inbox.empty() or not self._lock.acquire(blocking=False):
            return False
        try:
            self._turn()
        finally:
            self._lock.release()
        return True

    def _turn(self) -> None:
        try:
            self._turning.turn()
        except Exception as error:
            log.exception("the engine loop failed")
            self._failed = True
            if self._on_fatal is None:
                raise
            self._on_fatal(error)
        self._in_a_hurry = self._turning.in_a_hurry
