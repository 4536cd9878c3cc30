"""Messages on a stream socket.

A frame is the length of its body (uint32), its kind (uint8) and the body.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from scheduler.fronts.messages import Message, MessageError, pack, read

# Far above any prompt or batch; what passes it is no frame.
LONGEST_BODY = 1 << 28

_HEADER = struct.Struct("=IB")


def frame(message: Message) -> bytes:
    kind, body = pack(message)
    return _HEADER.pack(len(body), kind) + body


class FrameReader:
    """Cuts a stream of bytes, in whatever pieces it comes, into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that `data` completes. Raises MessageError, after which the stream is
        of no use."""
        buffer, start = self._buffer, 0
        buffer += data
        try:
            while len(buffer) - start >= _HEADER.size:
                length, kind = _HEADER.unpack_from(buffer, start)
                if length > LONGEST_BODY:
                    raise MessageError(
                        f"a frame of {length} bytes, and {LONGEST_BODY} is the limit"
                    )
                body = start + _HEADER.size
                if len(buffer) < body + length:
                    break
                start = body + length
                yield read(kind, bytes(buffer[body:start]))
        finally:
            del buffer[:start]  # also if the messages' taker fails: none comes twice
