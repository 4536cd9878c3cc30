"""Statuses of a server for as long as they are wanted, across its restarts."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from nanoserve.client import Client
from nanoserve.errors import NanoserveError
from nanoserve.status import ServerStatus
from nanoserve.status_watch import StatusWatch

RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Away:
    """No statuses come until the next one does. `error` None: the server has drained."""

    error: NanoserveError | None


class Feed:
    """Watches on a thread of its own, which tries again after each end. `notify` is called on
    that thread after each event is put into `events`."""

    def __init__(
        self,
        connect: Callable[[], Client],
        interval: float | None,
        notify: Callable[[], None],
    ) -> None:
        self.events: queue.SimpleQueue[ServerStatus | Away] = queue.SimpleQueue()
        self._connect = connect
        self._interval = interval
        self._notify = notify
        self._closing = threading.Event()
        self._watch: StatusWatch | None = None
        self._thread = threading.Thread(target=self._run, name="statuses", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        if self._watch is not None:
            self._watch.close()
        self._thread.join(RETRY_SECONDS)

    def _run(self) -> None:
        while not self._closing.is_set():
            # A channel of its own for each try: none waits for a backoff.
            with self._connect() as client:
                self._follow(client)
            self._closing.wait(RETRY_SECONDS)

    def _follow(self, client: Client) -> None:
        watch = client.watch_status(self._interval, rows=True, block_map=True, latencies=True)
        self._watch = watch
        error: NanoserveError | None = None
        try:
            for status in watch:
                if self._closing.is_set():
                    return
                self._put(status)
        except NanoserveError as failed:
            error = failed
        self._put(Away(error))

    def _put(self, event: ServerStatus | Away) -> None:
        self.events.put(event)
        if not self._closing.is_set():
            with contextlib.suppress(OSError):  # so much news that none is taken
                self._notify()
