"""One worker, and schedulers that take turns on it: the weights are loaded once."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.bench.ready import READY_SECONDS, wait_until_ready
from deploy.local.child import Child
from deploy.local.stop_signals import Unasked

_PATIENCE = 30.0  # seconds
_QUIET = ("--metrics-listen", "off")  # two benchmarks may run beside each other


class WorkerProcess:
    """A worker on a unix socket, as a context manager. `module`: what is run in its place, with
    what precedes the flags."""

    def __init__(self, flags: Sequence[str], module: Sequence[str] = ("worker",)) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="nanoserve-")
        self.folder = Path(self._temporary.name)
        self._address = f"unix:{self.folder}/worker.sock"
        command = [sys.executable, "-m", *module, "--listen", self._address, *_QUIET, *flags]
        self._started, self.started_at = time.monotonic(), time.time()
        self.child = Child("worker", command, echo=False)
        self.scheduler_pid = 0  # the last one's

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._temporary.cleanup()

    def stop(self) -> None:
        """Repeated calls do nothing."""
        self.child.stop(_PATIENCE, Unasked().asked)

    def wait_until_listening(self) -> float:
        """Seconds from its start until it listens, which it does once it can run steps. Raises
        RuntimeError with the end of its output if it ends first, or takes READY_SECONDS."""
        while not any(": listening on " in line for line in self.child.lines):
            seconds = time.monotonic() - self._started
            if self.child.exit_status is not None or seconds > READY_SECONDS:
                raise RuntimeError(f"the worker did not become ready:\n{self.child.tail()}")
            time.sleep(0.005)
        return time.monotonic() - self._started

    @contextmanager
    def scheduler(
        self,
        flags: Sequence[str],
        module: Sequence[str] = ("scheduler",),
        listen: str | None = None,
    ) -> Iterator[str]:
        """The address of one that is ready: `listen`, or a unix socket. `module`: as for the
        worker. Raises RuntimeError with the end of their output if a server does not start, or
        ends badly."""
        address = listen or f"unix:{self.folder}/scheduler.sock"
        own = ["--worker", self._address, "--listen", address, *_QUIET]
        scheduler = Child("scheduler", [sys.executable, "-m", *module, *own, *flags], echo=False)
        self.scheduler_pid = scheduler.pid
        try:
            try:
                wait_until_ready(address, scheduler)
            except RuntimeError as error:
                last = self.child.last_line
                raise RuntimeError(f"{error}\nthe worker's last line: {last}") from None
            yield address
        finally:
            status = scheduler.stop(_PATIENCE, Unasked().asked)
        if status:
            raise RuntimeError(f"the scheduler ended with {status}:\n{scheduler.tail()}")
