"""Writes the log on a thread of its own, so that nobody waits for who reads it."""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import deque
from typing import TextIO

# Some megabytes of requests' lines.
MOST_LINES = 10_000
# How long a flush waits for a reader, and for this process to be given a processor.
_FLUSH_SECONDS = 0.5
_STARVED_SECONDS = 10.0


class BackgroundHandler(logging.Handler):
    """Keeps so many lines for a reader that is slow, and leaves out what comes on top; then a
    line says how many. After a warning or an error it waits a little until all is written,
    since the process may be about to end."""

    def __init__(self, stream: TextIO, most_lines: int = MOST_LINES) -> None:
        super().__init__()
        self._stream = stream
        self._most_lines = most_lines
        self._lines: deque[str] = deque()
        self._left_out = 0
        self._writing = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the handler's lock, which would make others wait for a flush. (A handler that has
        none is no way out: from Python 3.13 on logging takes the lock unasked.)"""
        kept = self.filter(record)
        if kept:
            # From Python 3.12 on a filter may give another record.
            self.emit(kept if isinstance(kept, logging.LogRecord) else record)
        return bool(kept)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if len(self._lines) < self._most_lines:
                self._lines.append(line)
                self._changed.notify_all()
            else:
                self._left_out += 1
        if record.levelno >= logging.WARNING:
            self.flush()

    def flush(self) -> None:
        """Waits until all is written, for a bounded time. logging does so at the end."""
        started = time.monotonic()
        with self._changed:
            while self._lines or self._writing:
                waited = time.monotonic() - started
                if waited >= (_STARVED_SECONDS if self._reader_keeps_up() else _FLUSH_SECONDS):
                    return
                self._changed.wait(_FLUSH_SECONDS / 10)

    def _reader_keeps_up(self) -> bool:
        """Whether there is room for lines: if some are not written, our thread had no turn."""
        try:
            return bool(select.select([], [self._stream], [], 0)[1])
        except (OSError, ValueError):
            return False

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                self._writing = True
                lines, left_out = list(self._lines), self._left_out
                self._lines.clear()
                self._left_out = 0
            if left_out:
                lines.append(self.format(_gap(left_out)))
            self._write(lines)

    def _write(self, lines: list[str]) -> None:
        try:
            for line in lines:
                # Each by itself: so a pipe keeps it whole beside those of other processes.
                self._stream.write(f"{line}\n")
                self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads it any more


def _gap(left_out: int) -> logging.LogRecord:
    text = "%d lines are left out here, as the log was not read fast enough"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (left_out,), None)
