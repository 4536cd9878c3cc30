"""One end of the socket between the engine's process and a front end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from scheduler.fronts.frames import FrameReader
from scheduler.fronts.messages import Message, MessageError

log = logging.getLogger(__name__)

# What may wait for a peer that does not read, bytes: tens of seconds of all tokens that a
# busy engine makes, or some seconds where each has 20 log-probabilities beside its own.
MOST_WAITING = 32 << 20
_READ_BYTES = 1 << 18


class Connection:
    """Sends from any thread without ever blocking; receives on its event loop.

    What the socket does not take at once waits, and the loop sends it when it can. A
    connection ends once: by the peer's end, an error, or more waiting than the bound.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """To be made on the loop, where both callbacks are called; `on_end` is told why."""
        sock.setblocking(False)
        self._socket = sock
        self._on_message = on_message
        self._on_end = on_end
        self._most_waiting = most_waiting
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        # Held over each change of what waits and each send, so that frames stay whole.
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._stalled = False  # and will end
        self._ended = False
        self._loop.add_reader(sock, self._receive)

    def send(self, frames: bytes) -> None:
        """Whole frames, one or several. After the end they are dropped."""
        with self._lock:
            if self._ended or self._stalled:
                return
            sent = 0 if self._waiting else self._try_to_send(frames)
            if sent == len(frames):
                return
            first = not self._waiting
            self._waiting += memoryview(frames)[sent:]
            self._stalled = len(self._waiting) > self._most_waiting
        if self._stalled:
            self._call_soon(lambda: self.end("it does not read what it is sent"))
        elif first:
            self._call_soon(self._watch)

    async def flush(self, seconds: float) -> None:
        """Waits until nothing waits to be sent, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._waiting and not self._ended:
                    await asyncio.sleep(0.01)

    def end(self, reason: str) -> None:
        """Closes the socket, if that has not happened. Called on the loop."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # for other holders of it too
            self._socket.close()
            self._waiting.clear()
        self._on_end(reason)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(callback)

    def _watch(self) -> None:
        with self._lock:
            if self._waiting and not self._ended:
                self._loop.add_writer(self._socket, self._send_waiting)

    def _send_waiting(self) -> None:
        with self._lock:
            del self._waiting[: self._try_to_send(self._waiting)]
            if not self._waiting:
                self._loop.remove_writer(self._socket)

    def _try_to_send(self, data: bytes | bytearray) -> int:
        """How many bytes the socket took. An error shows when it is read."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionError:  # it left with something unread
            data = b""
        if not data:
            self.end("it closed its socket")
            return
        try:
            for message in self._reader.feed(data):
                self._on_message(message)
        except MessageError as error:
            log.error("the other end sent %s", error)
            self.end(str(error))
