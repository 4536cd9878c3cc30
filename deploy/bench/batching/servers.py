"""One worker, and schedulers that take turns on it: the weights are loaded once."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.bench.batching.recording import Recording
from deploy.bench.ready import wait_until_ready
from deploy.local.child import Child
from deploy.local.stop_signals import Unasked

_PATIENCE = 30.0  # seconds
_QUIET = ("--metrics-listen", "off")  # two benchmarks may run beside each other


class WorkerProcess:
    """A worker on a unix socket, as a context manager."""

    def __init__(self, flags: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nanoserve-")
        self._address = f"unix:{self._folder.name}/worker.sock"
        command = [sys.executable, "-m", "worker", "--listen", self._address, *_QUIET, *flags]
        self._worker = Child("worker", command, echo=False)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.stop(_PATIENCE, Unasked().asked)
        self._folder.cleanup()

    @contextmanager
    def scheduler(self, flags: Sequence[str], recordings: list[Recording]) -> Iterator[str]:
        """The address of a scheduler, ready; its recording is appended when it has ended.
        Raises RuntimeError with the end of their output if a server does not start, or ends
        badly."""
        address = f"unix:{self._folder.name}/scheduler.sock"
        path = Path(self._folder.name) / "recording.json.gz"
        own = ["--worker", self._address, "--listen", address, *_QUIET]
        module = "deploy.bench.batching.recorded_scheduler"
        command = [sys.executable, "-m", module, str(path), *own, *flags]
        scheduler = Child("scheduler", command, echo=False)
        try:
            try:
                wait_until_ready(address, scheduler)
            except RuntimeError as error:
                raise RuntimeError(f"{error}\nthe worker's last line: {self._last}") from None
            yield address
        finally:
            status = scheduler.stop(_PATIENCE, Unasked().asked)
        if status:
            raise RuntimeError(f"the scheduler ended with {status}:\n{scheduler.tail()}")
        recordings.append(Recording.load(path))

    @property
    def _last(self) -> str:
        return self._worker.last_line
