"""One server of the stand: started again whenever it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

from deploy.local.child import Child

_RESTART_SECONDS = 0.2
_LOOK_SECONDS = 0.02
_STOP_SECONDS = 40.0
# How a server may end of a signal. Of SIGTERM also before it has a handler, and at once of a second
# one. A worker that stood still for too long gives itself up.
_ENDS = {
    signal.SIGKILL: {-signal.SIGKILL},
    signal.SIGTERM: {0, -signal.SIGTERM, 128 + signal.SIGTERM},
    signal.SIGSTOP: {1},
}


class Server:
    """`strange` has what should not have happened to it, one sentence each. Times are
    time.monotonic()."""

    def __init__(
        self, name: str, flags: list[str], scratch: Path, *, may_crash: bool = False
    ) -> None:
        """`scratch`: the folder for its temporary files. `may_crash`: it may end with status 1
        by itself, as requests may make it."""
        self.name = name
        self.starts = 0
        self.strange: list[str] = []
        self.is_lost = False  # it ended without a reason: nothing starts it again
        self._command = ["env", f"TMPDIR={scratch}", sys.executable, "-m", name, *flags]
        self._may_crash = may_crash
        self._family: set[psutil.Process] = set()
        self._supervisor: asyncio.Task[None] | None = None
        self._start()

    def _start(self) -> None:
        self.starts += 1
        self.started_at = time.monotonic()
        self.listening_at: float | None = None
        self._ends = {1} if self._may_crash else set()
        self.child = Child(self.name, self._command, echo=False)

    def supervise(self) -> None:
        """From here on one that ends is started again."""
        self._supervisor = asyncio.create_task(self._supervise())

    @property
    def is_gone(self) -> bool:
        """Whether it ended and nothing starts it again."""
        return self.is_lost or (self._supervisor is None and self.child.exit_status is not None)

    def says(self, words: str) -> bool:
        """Whether they are in the last lines of its output."""
        return any(words in line for line in self.child.lines)

    async def starts_again(self) -> None:
        """Returns at once if it runs."""
        while self.child.exit_status is not None and not self.is_gone:
            await asyncio.sleep(_LOOK_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        """It may have ended a moment ago."""
        self._ends |= _ENDS.get(number, set())
        self._remember_family()
        if self.child.exit_status is None:
            os.kill(self.child.pid, number)

    async def stop(self) -> None:
        """Ends it for good; what is left of it and all before it is strange."""
        if self._supervisor is not None:
            self._supervisor.cancel()
        self._remember_family()
        if self.child.exit_status is None:
            status = await asyncio.to_thread(self.child.stop, _STOP_SECONDS, threading.Event())
            if status != 0:
                self._complain(f"the {self.name} stopped with {status}:\n{self.child.tail()}")
        for pid in [process.pid for process in self._family if _lives(process)]:
            self._complain(f"process {pid} of the {self.name} is left behind")

    def _complain(self, sentence: str) -> None:
        self.strange.append(sentence)
        print(f"! {sentence}", file=sys.stderr, flush=True)

    def _remember_family(self) -> None:
        try:
            one = psutil.Process(self.child.pid)
            self._family |= {one, *one.children(recursive=True)}
        except psutil.NoSuchProcess:
            pass

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            status = self.child.exit_status
            if status is None:
                if self.listening_at is None and self.says("listening on"):
                    self.listening_at = time.monotonic()
                continue
            if status not in self._ends:
                self._complain(f"the {self.name} ended with {status}:\n{self.child.tail()}")
                self.is_lost = True
                return
            self.listening_at = None
            await asyncio.sleep(_RESTART_SECONDS)
            self._start()


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
