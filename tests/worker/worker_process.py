"""A worker as a process of its own, for tests of start, signals and exit codes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import SECONDS

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """`python -m worker FLAGS`, after `prefix`, metrics off unless FLAGS say otherwise. What it
    logs is gathered by a thread."""

    def __init__(self, *flags: str, prefix: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "worker", "--metrics-listen", "off", *flags],
            cwd=ROOT,
            env={"PYTHONPATH": "protos", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._all_read = False
        self._logged = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            with self._logged:
                self.lines.append(line)
                self._logged.notify_all()
        with self._logged:
            self._all_read = True
            self._logged.notify_all()

    def wait_for(self, pattern: str, timeout: float = SECONDS) -> re.Match[str]:
        """The first line that matches. Fails with the whole log if none comes."""
        with self._logged:
            self._logged.wait_for(lambda: self._find(pattern) or self._all_read, timeout)
            found = self._find(pattern)
        assert found, self.log
        return found

    def _find(self, pattern: str) -> re.Match[str] | None:
        return next((m for line in self.lines if (m := re.search(pattern, line))), None)

    def address(self) -> str:
        """Once it listens; on a machine that never ran one, kernels are compiled before."""
        return self.wait_for(r"listening on (\S+)", 3 * SECONDS)[1]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code

    @property
    def log(self) -> str:
        return "".join(self.lines)


@contextmanager
def worker_process(*flags: str, prefix: Sequence[str] = ()) -> Iterator[WorkerProcess]:
    """Kills the process at the end if the test did not end it."""
    worker = WorkerProcess(*flags, prefix=prefix)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.wait()
