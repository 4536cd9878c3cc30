"""Looks at the server's status while a run goes on."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from deploy.loadtest.timeline import ServerSample
from nanoserve import Client, NanoserveError

_TIMEOUT = 5.0  # seconds; a look that takes longer is left out


class Sampler:
    """A thread that asks every `interval` seconds, as a context manager; it touches no
    process that generates."""

    def __init__(self, client: Client | None, interval: float, origin: float) -> None:
        self.samples: list[ServerSample] = []
        self._client = client
        self._interval = interval
        self._origin = origin
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        if self._client is not None and self._interval > 0:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _sample(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            self._look()
            due = max(due + self._interval, time.monotonic())

    def _look(self) -> None:
        try:
            status = self._client.status(timeout=_TIMEOUT) if self._client else None
        except NanoserveError:
            return  # the requests' own statuses tell what is wrong
        if status is not None:
            self.samples.append(
                ServerSample(
                    t=round(time.monotonic() - self._origin, 6),
                    running=status.running_requests,
                    waiting=status.waiting_requests,
                    free_blocks=status.free_blocks,
                    usable_blocks=status.usable_blocks,
                    preemptions=status.preemptions,
                )
            )
