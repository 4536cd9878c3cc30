"""What is made of files, and made again when they change."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

# Between two looks at files that nobody asks for, so that a broken one is told of in time.
WATCH_SECONDS = 5.0
# Certificate and key are replaced one after the other: what does not fit gets a second look.
SECOND_LOOK_SECONDS = 1.0


class FileError(ValueError):
    """A file that cannot be used; the message names the flag and says what to do."""


class Reloaded(Generic[T]):
    """`read()` of the files at `paths`, as of their last change. Any thread may ask.

    `read` raises FileError. When it does so at the start, the caller gets it; later the last
    good value stays and the log tells, once for each change, what is wrong.
    """

    def __init__(
        self,
        paths: Sequence[str],
        read: Callable[[], T],
        second_look: float = SECOND_LOOK_SECONDS,
    ) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._second_look = second_look
        self._lock = threading.Lock()
        self._closed = threading.Event()
        # Before the read: a change in the middle of it is then one that comes after.
        self._seen: object = self._signature()
        self._value = read()
        self._failed: object = None  # the signature of what could not be read
        self._look_again = 0.0  # time.monotonic()
        self._told = False

    def get(self) -> T:
        """The current value; never raises."""
        with self._lock:
            signature = self._signature()
            if signature != self._seen:
                self._reload(signature)
            return self._value

    def watch(self, look: Callable[[T], None], seconds: float = WATCH_SECONDS) -> None:
        """Calls `look` with the value now and every so often, on a thread of its own, until
        `close`."""

        def run() -> None:
            while not self._closed.wait(seconds):
                look(self.get())

        look(self._value)
        threading.Thread(target=run, name="file-watch", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _reload(self, signature: object) -> None:
        again = signature == self._failed
        if again and time.monotonic() < self._look_again:
            return
        try:
            self._value = self._read()
        except Exception as error:  # whatever it is, the server goes on with what it has
            self._told = again and self._told
            if again and not self._told:
                log.error("%s; what was read before stays in use", error)
                self._told = True
            self._failed = signature
            # The next one is read though it looks like the last good one: on a file system whose
            # times are coarse another file may have its number, size and time.
            self._seen = None
            self._look_again = time.monotonic() + self._second_look
            return
        self._seen, self._failed = signature, None
        log.info("read again: %s", ", ".join(self._paths))

    def _signature(self) -> object:
        """Differs once a file was written or replaced, links on the way included."""
        return tuple(_identity(path) for path in self._paths)


def _identity(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def read_bytes(flag: str, path: str) -> bytes:
    """Raises FileError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise FileError(f"{flag} {path}: cannot be read: {error.strerror}") from None


def all_or_none(*flags: tuple[str, str | None]) -> bool:
    """Whether all of these flags, with their values, are given, rather than none. Raises
    FileError if it is some."""
    missing = [flag for flag, value in flags if not value]
    if not missing:
        return True
    if len(missing) == len(flags):
        return False
    given = [f"{flag} {value}" for flag, value in flags if value]
    raise FileError(
        f"{', '.join(given)}: needs {' and '.join(missing)} as well: give all of them or none"
    )
