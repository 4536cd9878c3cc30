"""The generator processes of a run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self

from deploy.loadtest.orders import Broken, Counts, Done, Order, Ready, Setup, Start, Stop
from deploy.loadtest.timeline import Timeline

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 0.1  # from the order to start until the start: all are told by then
_END_SECONDS = 10.0
_POLL = 0.1  # seconds
MOST_PROCESSES = 8


class LoadError(Exception):
    """The run cannot go on; the message says why."""


def default_processes() -> int:
    return min(MOST_PROCESSES, len(os.sched_getaffinity(0)))


class Fleet:
    """Starts them, as a context manager; leaving it ends them."""

    def __init__(self, setup: Setup, processes: int, stop: Event) -> None:
        self._setup = setup
        self._stop = stop
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._count = processes

    def __enter__(self) -> Self:
        """Returns once all are connected to the server. Raises LoadError."""
        try:
            for _ in range(self._count):
                self._spawn()
            self._send_all(lambda _: self._setup)
            self._await_all(Ready)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def carry_out(
        self,
        order: Order,
        warm_up_seconds: float,
        on_counts: Callable[[Counts], None],
    ) -> tuple[float, list[Timeline]]:
        """When it started (time.monotonic()), and its timelines by index. Raises LoadError."""
        parts = len(self._connections)
        self._send_all(lambda part: order.share(part, parts))
        self._await_all(Ready)
        at = time.monotonic() + _START_SECONDS
        self._send_all(lambda _: Start(at, at + warm_up_seconds))
        done = self._await_all(Done, on_counts)
        timelines = [timeline for part in done for timeline in part.timelines]
        return at, sorted(timelines, key=lambda timeline: timeline.index)

    def _spawn(self) -> None:
        ours, theirs = Pipe()
        command = [sys.executable, "-m", "deploy.loadtest.generate", str(theirs.fileno())]
        # A process group of its own: Ctrl-C is for us, who tell it what to do.
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            pass_fds=[theirs.fileno()],
            process_group=0,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._processes.append(process)
        self._connections.append(ours)

    def _send_all(self, message: Callable[[int], Any]) -> None:
        for part, connection in enumerate(self._connections):
            try:
                connection.send(message(part))
            except OSError:
                raise self._lost(part) from None

    def _await_all(
        self, kind: type, on_counts: Callable[[Counts], None] = lambda _: None
    ) -> list[Any]:
        """One message of `kind` from each; a stop is passed on meanwhile."""
        answers: dict[int, Any] = {}
        counts = [Counts()] * len(self._connections)
        stopped = False
        while len(answers) < len(self._connections):
            if self._stop.is_set() and not stopped:
                stopped = True
                self._send_all(lambda _: Stop())
            for connection in wait(self._connections, _POLL):
                part = self._connections.index(connection)
                message = self._receive(part)
                if isinstance(message, Broken):
                    raise LoadError(message.reason)
                if isinstance(message, Counts):
                    counts[part] = message
                elif isinstance(message, kind):
                    answers[part] = message
            on_counts(Counts(*map(sum, zip(*counts, strict=True))))
        return [answers[part] for part in range(len(self._connections))]

    def _receive(self, part: int) -> Any:
        try:
            return self._connections[part].recv()
        except (EOFError, OSError):
            raise self._lost(part) from None

    def _lost(self, part: int) -> LoadError:
        status = self._processes[part].wait(_END_SECONDS)
        return LoadError(f"generator process {part} ended by itself, with exit status {status}")

    def _end(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._connections, self._processes = [], []
