"""A front end's process, from the engine's side."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence


class FrontEndProcess:
    """Starts the scheduler anew as front end `number` alone: by exec, since threads, and gRPC
    with them, do not survive a fork. `arguments` are the scheduler's own."""

    def __init__(self, number: int, arguments: Sequence[str]) -> None:
        self.number = number
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            flag = f"--front-end={theirs.fileno()}:{number}"
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scheduler", *arguments, flag],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # Ctrl-C in a terminal reaches the engine's process alone.
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def wait(self, patience: float) -> str:
        """How it ended, in words; kills it if it has not within `patience` seconds."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
        status = self._process.wait()
        return f"signal {-status}" if status < 0 else f"exit status {status}"
