"""A server process of ours: started tied to us, its output read, stopped in steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TIED = Path(__file__).with_name("tied.py")
_TAIL_LINES = 40


def tied(command: Sequence[str]) -> list[str]:
    """`command`, made to die with this process."""
    return [sys.executable, "-S", str(_TIED), str(os.getpid()), *command]


def environment() -> dict[str, str]:
    """Ours, with the checkout's packages importable and output unbuffered."""
    paths = [str(ROOT), str(ROOT / "protos"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
    }


class Child:
    """Runs a server. Its output is kept (the last lines) and, with `echo`, shown.

    It has a session of its own: Ctrl-C in the terminal reaches us alone, and we stop
    the servers in the right order.
    """

    def __init__(
        self, name: str, command: Sequence[str], echo: bool, without: Collection[str] = ()
    ) -> None:
        """`without`: names of variables that it shall not see."""
        self.name = name
        self._without = without
        self._command = command
        self._echo = echo
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process = subprocess.Popen(
            tied(command),
            cwd=ROOT,
            env={name: text for name, text in environment().items() if name not in without},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"{name} output", daemon=True)
        self._reader.start()

    def again(self) -> Child:
        """Another one like it."""
        return Child(self.name, self._command, self._echo, self._without)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    @property
    def last_line(self) -> str:
        return self._lines[-1] if self._lines else ""

    @property
    def lines(self) -> list[str]:
        """The last lines of its output so far."""
        return list(self._lines)

    def tail(self) -> str:
        """The last lines of its output, once it has ended."""
        self._reader.join(timeout=10)  # a child of its own may hold the pipe
        return "\n".join(self._lines)

    def stop(self, patience: float, hurry: threading.Event) -> int:
        """Asks it to end, and kills it after `patience` seconds or once `hurry` is set.
        Returns its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        give_up = time.monotonic() + patience
        while self._process.poll() is None:
            if hurry.is_set() or time.monotonic() > give_up:
                self._process.kill()
                break
            time.sleep(0.02)
        return self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            text = line.rstrip()
            if not text:
                continue
            self._lines.append(text)
            if self._echo:
                print(f"{self.name:<9} | {text}", file=sys.stderr, flush=True)
