"""One HTTP/2 connection to a gRPC server, made for load.

gRPC's own asyncio client spends tens of microseconds on a message and hundreds on a request,
which it sends from a task that waits behind all messages just received: at a thousand streams
the tool would be the limit and send late. Here both take about ten, a message in the callback
that received its bytes, and a request is written at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Protocol

from deploy.loadtest import frames

# Read at a time: bounds how long messages keep the loop from sending what is due.
_READ_BYTES = 8192


class Exchange(Protocol):
    """One stream's callbacks. on_headers with `ended`, on_reset and on_lost are last."""

    stream_id: int  # set by the connection once there is a stream; 0 before

    def on_sent(self) -> None: ...

    def on_data(self, data: bytes) -> None:
        """A connection with a small window expects `read` for every byte."""

    def on_headers(self, headers: dict[str, str], ended: bool) -> None: ...

    def on_reset(self, error_code: int) -> None: ...

    def on_lost(self, reason: str) -> None: ...


class _Stream:
    __slots__ = ("exchange", "unsent", "window")

    def __init__(self, exchange: Exchange, body: bytes, window: int) -> None:
        self.exchange = exchange
        self.unsent = body
        self.window = window  # bytes that the peer lets us send


class Connection(asyncio.BufferedProtocol):
    """`window`: bytes of a stream's data that may come before its reader has taken some.
    `on_lost` is called once, when streams cannot be started any more."""

    def __init__(
        self,
        headers: list[tuple[str, str]],
        window: int = frames.LARGEST_WINDOW,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_lost = on_lost
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._headers = frames.encode_headers(headers)
        self._window = window
        self._streams: dict[int, _Stream] = {}
        self._waiting: deque[tuple[Exchange, bytes]] = deque()  # for a stream to be allowed
        self._blocked: dict[int, _Stream] = {}  # by flow control, in order
        self._next_id = 1
        self._most_streams = frames.LARGEST_WINDOW
        self._peer_window = frames.DEFAULT_WINDOW  # of a stream at its start
        self._send_window = frames.DEFAULT_WINDOW  # of the connection
        self._frame_size = frames.DEFAULT_FRAME_SIZE
        self._received = 0  # bytes of data not given back to the connection's window
        # asyncio's TLS fills slices of it, which of a bytearray would be copies.
        self._read_buffer = memoryview(bytearray(_READ_BYTES))
        self._rest = bytearray()
        self._block: tuple[int, int, bytes] | None = None  # headers to be continued
        self._out: list[bytes] = []
        self._sending: list[Exchange] = []
        self._lost: str | None = None

    # What the client calls.

    @property
    def is_open(self) -> bool:
        """Whether streams can be started."""
        return self._lost is None

    def send(self, exchange: Exchange, body: bytes) -> None:
        """Starts a stream, as soon as the peer allows one more. Calls nothing back before it
        returns."""
        if self._lost is not None:
            asyncio.get_running_loop().call_soon(exchange.on_lost, self._lost)
            return
        if len(self._streams) >= self._most_streams:
            self._waiting.append((exchange, body))
            return
        stream_id, self._next_id = self._next_id, self._next_id + 2
        exchange.stream_id = stream_id
        stream = self._streams[stream_id] = _Stream(exchange, body, self._peer_window)
        self._write(frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, self._headers))
        self._send_body(stream_id, stream)
        self._sending.append(exchange)

    def cancel(self, exchange: Exchange) -> None:
        """Ends its stream, if there still is one; none of its callbacks comes after."""
        if exchange.stream_id == 0:
            self._waiting = deque(item for item in self._waiting if item[0] is not exchange)
        elif self._forget(exchange.stream_id) is not None:
            self._reset(exchange.stream_id)

    def read(self, exchange: Exchange, count: int) -> None:
        """Lets the peer send `count` more bytes to it."""
        if exchange.stream_id in self._streams and count:
            self._write(frames.window_update(exchange.stream_id, count))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        ours = [
            (frames.HEADER_TABLE_SIZE, 0),
            (frames.ENABLE_PUSH, 0),
            (frames.INITIAL_WINDOW_SIZE, self._window),
        ]
        grow = frames.LARGEST_WINDOW - frames.DEFAULT_WINDOW
        first = (frames.PREFACE, frames.settings(ours), frames.window_update(0, grow))
        transport.write(b"".join(first))

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        buffer = self._rest
        buffer += self._read_buffer[:nbytes]
        offset, end = 0, len(buffer)
        while end - offset >= frames.FRAME_HEADER_LEN:
            length, kind, flags, stream_id = frames.frame_header(buffer, offset)
            start = offset + frames.FRAME_HEADER_LEN
            if end - start < length:
                break
            offset = start + length
            payload = bytes(buffer[start:offset])
            if kind == frames.DATA:
                self._take_data(stream_id, flags, payload)
            elif handler := self._HANDLERS.get(kind):
                handler(self, stream_id, flags, payload)
        del buffer[:offset]

    def connection_lost(self, exception: Exception | None) -> None:
        self._end(f"the connection broke: {exception or 'closed by the server'}")

    # Frames that come in.

    def _take_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        self._received += len(payload)
        if self._received > frames.LARGEST_WINDOW // 2:
            self._write(frames.window_update(0, self._received))
            self._received = 0
        if (stream := self._streams.get(stream_id)) is None:
            return  # cancelled
        if flags & frames.PADDED:
            payload = frames.without_padding(payload, flags)
        stream.exchange.on_data(payload)
        if flags & frames.END_STREAM:
            self._forget(stream_id)
            stream.exchange.on_headers({}, True)

    def _take_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        block = frames.without_padding(payload, flags)
        if flags & frames.HAS_PRIORITY:
            block = block[5:]
        if flags & frames.END_HEADERS:
            self._take_block(stream_id, flags, block)
        else:
            self._block = (stream_id, flags, block)

    def _take_continuation(self, _stream_id: int, flags: int, payload: bytes) -> None:
        if self._block is not None:
            begun_id, begun_flags, block = self._block
            if flags & frames.END_HEADERS:
                self._block = None
                self._take_block(begun_id, begun_flags, block + payload)
            else:
                self._block = (begun_id, begun_flags, block + payload)

    def _take_block(self, stream_id: int, flags: int, block: bytes) -> None:
        ended = bool(flags & frames.END_STREAM)
        stream = self._forget(stream_id) if ended else self._streams.get(stream_id)
        if stream is None:
            return
        if ended and stream.unsent:
            self._reset(stream_id)  # the answer is there, the rest of the request not wanted
        try:
            stream.exchange.on_headers(frames.decode_headers(block), ended)
        except ValueError as error:
            stream.exchange.on_lost(str(error))
            self._end(str(error))
            self._transport.abort()

    def _take_reset(self, stream_id: int, _flags: int, payload: bytes) -> None:
        if (stream := self._forget(stream_id)) is not None:
            stream.exchange.on_reset(int.from_bytes(payload, "big"))

    def _take_settings(self, _stream_id: int, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        for name, value in frames.read_settings(payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                for stream in self._streams.values():
                    stream.window += value - self._peer_window
                self._peer_window = value
            elif name == frames.MAX_CONCURRENT_STREAMS:
                self._most_streams = value
            elif name == frames.MAX_FRAME_SIZE:
                self._frame_size = value
        self._write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        if not self.ready.done():
            self.ready.set_result(None)
        self._go_on()

    def _take_ping(self, _stream_id: int, flags: int, payload: bytes) -> None:
        if not flags & frames.ACK:
            self._write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _take_goaway(self, _stream_id: int, _flags: int, payload: bytes) -> None:
        last, reason = int.from_bytes(payload[:4], "big"), payload[8:].decode(errors="replace")
        self._lose(f"the server is going away {reason}".strip())
        for stream_id in [number for number in self._streams if number > last]:
            if (stream := self._forget(stream_id)) is not None:
                stream.exchange.on_lost(self._lost or "")
        self._refuse_waiting()

    def _take_window_update(self, stream_id: int, _flags: int, payload: bytes) -> None:
        credit = int.from_bytes(payload, "big")
        if stream_id == 0:
            self._send_window += credit
        elif (stream := self._streams.get(stream_id)) is not None:
            stream.window += credit
        self._go_on()

    _HANDLERS: ClassVar[dict[int, Callable[[Connection, int, int, bytes], None]]] = {
        frames.HEADERS: _take_headers,
        frames.CONTINUATION: _take_continuation,
        frames.RST_STREAM: _take_reset,
        frames.SETTINGS: _take_settings,
        frames.PING: _take_ping,
        frames.GOAWAY: _take_goaway,
        frames.WINDOW_UPDATE: _take_window_update,
    }

    # What goes out.

    def _send_body(self, stream_id: int, stream: _Stream) -> None:
        """As much as the windows allow; the rest waits for more."""
        while True:
            room = max(0, min(self._frame_size, stream.window, self._send_window))
            part, stream.unsent = stream.unsent[:room], stream.unsent[room:]
            stream.window -= len(part)
            self._send_window -= len(part)
            if not stream.unsent:
                self._write(frames.frame(frames.DATA, frames.END_STREAM, stream_id, part))
                return
            if not part:
                self._blocked[stream_id] = stream
                return
            self._write(frames.frame(frames.DATA, 0, stream_id, part))

    def _go_on(self) -> None:
        """After a window grew."""
        blocked, self._blocked = self._blocked, {}
        for stream_id, stream in blocked.items():
            self._send_body(stream_id, stream)

    def _write(self, data: bytes) -> None:
        """All that one callback writes goes out together, right after it."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        data, self._out = self._out, []
        sending, self._sending = self._sending, []
        if not self._transport.is_closing():
            self._transport.write(b"".join(data))
        for exchange in sending:
            exchange.on_sent()

    def _reset(self, stream_id: int) -> None:
        code = frames.CANCEL.to_bytes(4, "big")
        self._write(frames.frame(frames.RST_STREAM, 0, stream_id, code))

    def _forget(self, stream_id: int) -> _Stream | None:
        stream = self._streams.pop(stream_id, None)
        self._blocked.pop(stream_id, None)
        while self._waiting and len(self._streams) < self._most_streams:
            self.send(*self._waiting.popleft())
        return stream

    def _end(self, reason: str) -> None:
        self._lose(reason)
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(reason))
        streams, self._streams = self._streams, {}
        self._blocked = {}
        for stream in streams.values():
            stream.exchange.on_lost(reason)
        self._refuse_waiting()

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
            self._on_lost()

    def _refuse_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for exchange, _ in waiting:
            exchange.on_lost(self._lost or "")
