"""Tells a waiting person what is being waited for."""

from __future__ import annotations

import re
import shutil
import sys
import time

# Date, time, level and logger of our servers' log lines.
_LOG_PREFIX = re.compile(r"^\d{4}-\d\d-\d\dT\S+Z [A-Z]+ \S+: ")


class Progress:
    """A line on stderr: redrawn on a terminal, printed every `interval` seconds
    elsewhere."""

    def __init__(self, what: str, interval: float = 5) -> None:
        self._what = what
        self._interval = interval
        self._start = time.monotonic()
        self._printed = self._start
        self._terminal = sys.stderr.isatty()
        self._shown = ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def show(self, detail: str) -> None:
        detail = _LOG_PREFIX.sub("", detail)
        line = f"{self._what}: {self.seconds:.0f} s" + (f", {detail}" if detail else "")
        if self._terminal:
            line = line[: shutil.get_terminal_size().columns - 1]
            if line != self._shown:
                self._shown = line
                sys.stderr.write(f"\r\x1b[K{line}")
                sys.stderr.flush()
        elif time.monotonic() - self._printed >= self._interval:
            self._printed = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def end(self, message: str) -> None:
        """Replaces the line by `message`."""
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
        print(message, file=sys.stderr, flush=True)
