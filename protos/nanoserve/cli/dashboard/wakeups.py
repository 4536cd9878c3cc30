"""What a dashboard waits for: news, keys, signals, a change of the terminal's size."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Self

_QUIT_KEYS = (b"q", b"Q", b"\x03", b"\x04")


class Wakeups:
    """Use as a context, on the main thread. Signals raise nothing, so that whatever they
    interrupt is left in order: SIGINT and SIGTERM make `quitting` true.

    With `keys` the terminal gives each key at once, and is put back at the end.
    """

    def __init__(self, keys: bool) -> None:
        self.quitting = False
        self._keys = keys
        self._undo = contextlib.ExitStack()

    def notify(self) -> None:
        """Ends the wait. From any thread."""
        os.write(self._write, b".")

    def wait(self, timeout: float) -> None:
        """Until something happens, at most `timeout` seconds."""
        keyboard = sys.stdin.fileno() if self._keys else self._read
        ready, _, _ = select.select({self._read, keyboard}, [], [], timeout)
        if self._read in ready:
            os.read(self._read, 4096)
        if self._keys and keyboard in ready:
            typed = os.read(keyboard, 256)
            self._keys = bool(typed)  # the end of the input is not worth watching
            self.quitting |= any(key in typed for key in _QUIT_KEYS)

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._undo.callback(os.close, self._read)
        self._undo.callback(os.close, self._write)
        self._undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(self._write))
        for name in ("SIGINT", "SIGTERM"):
            self._handle(getattr(signal, name), self._quit)
        if hasattr(signal, "SIGWINCH"):
            self._handle(signal.SIGWINCH, lambda *_: None)
        if self._keys:
            self._undo.enter_context(_single_keys(sys.stdin.fileno()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._undo.close()

    def _handle(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        self._undo.callback(signal.signal, number, signal.signal(number, handler))

    def _quit(self, *_: object) -> None:
        self.quitting = True


@contextlib.contextmanager
def _single_keys(terminal: int) -> Iterator[None]:
    """Keys come without a newline and unseen; no key stops the process, as it would leave its
    picture on the terminal."""
    import termios
    import tty

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    settings = termios.tcgetattr(terminal)
    settings[6][termios.VSUSP] = b"\x00"
    termios.tcsetattr(terminal, termios.TCSADRAIN, settings)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
