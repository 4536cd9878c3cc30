"""Ctrl-C while an answer comes."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Iterator
from typing import Protocol


class Closable(Protocol):
    """What can be stopped from another thread while this one waits for it."""

    def close(self) -> None: ...


@contextlib.contextmanager
def closing_on_interrupt(target: Closable) -> Iterator[threading.Event]:
    """Closes `target` on Ctrl-C and sets the event, instead of raising KeyboardInterrupt.

    An exception out of a signal may fall anywhere, also between gRPC's taking and giving
    back of a lock that every later call on the channel needs. A second Ctrl-C does raise it:
    whoever presses twice wants out, and something else may be what is waited for. Main thread
    only.
    """
    interrupted = threading.Event()
    # Its put may be called in a signal handler, whatever the thread is doing.
    presses: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def watch() -> None:
        if presses.get():
            interrupted.set()
            target.close()

    watcher = threading.Thread(target=watch, name="interrupts", daemon=True)
    watcher.start()

    def pressed(*_: object) -> None:
        presses.put(True)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, pressed)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
        presses.put(False)
        watcher.join()
