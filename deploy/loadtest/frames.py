"""HTTP/2 frames and header blocks (RFC 9113, RFC 7541), as far as a gRPC client needs
them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache

from hpack import Decoder, HPACKError

# Kinds of frames.
DATA = 0
HEADERS = 1
RST_STREAM = 3
SETTINGS = 4
PING = 6
GOAWAY = 7
WINDOW_UPDATE = 8
CONTINUATION = 9
# Flags; END_STREAM of data and headers, ACK of settings and pings.
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20
# Names of settings.
HEADER_TABLE_SIZE = 1
ENABLE_PUSH = 2
MAX_CONCURRENT_STREAMS = 3
INITIAL_WINDOW_SIZE = 4
MAX_FRAME_SIZE = 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_LEN = 9
DEFAULT_WINDOW = 65_535
LARGEST_WINDOW = 2**31 - 1
DEFAULT_FRAME_SIZE = 16_384
CANCEL = 8

_HEADER = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return _HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def frame_header(buffer: bytes | bytearray, offset: int) -> tuple[int, int, int, int]:
    """(length of the payload, kind, flags, stream)"""
    high, low, kind, flags, stream = _HEADER.unpack_from(buffer, offset)
    return high << 8 | low, kind, flags, stream & 0x7FFFFFFF


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    return list(_SETTING.iter_unpack(payload))


def window_update(stream: int, credit: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, credit.to_bytes(4, "big"))


def without_padding(payload: bytes, flags: int) -> bytes:
    """What a HEADERS or DATA frame carries beside its padding."""
    if flags & PADDED:
        payload = payload[1 : len(payload) - payload[0]]
    return payload


def encode_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """A block that uses no table: literals that are never indexed, no Huffman coding."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in headers)


@lru_cache(maxsize=1024)
def decode_headers(block: bytes) -> dict[str, str]:
    """Of a peer that was told a table of size 0, whose blocks therefore stand alone: equal
    ones, such as most trailers, are decoded once. Raises ValueError."""
    decoder = Decoder()
    decoder.header_table_size = decoder.max_allowed_table_size = 0
    try:
        return dict(decoder.decode(block))
    except (HPACKError, UnicodeDecodeError) as error:
        raise ValueError(f"a header block that cannot be read: {error}") from None


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    length, coded = len(data) - 127, bytearray([127])
    while length >= 128:
        coded.append(length % 128 + 128)
        length //= 128
    return bytes([*coded, length]) + data
