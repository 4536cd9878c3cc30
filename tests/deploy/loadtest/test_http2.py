"""The HTTP/2 connection, frame by frame, against the standard."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hpack import Decoder, Encoder

from deploy.loadtest import frames
from deploy.loadtest.http2 import Connection

HEADERS = [(":method", "POST"), (":path", "/x"), ("long", "v" * 300), ("te", "trailers")]


class Wire:
    """Stands for the transport; keeps what was written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """(kind, flags, stream, payload) of all frames since the last call."""
        data, self.written = self.written.removeprefix(frames.PREFACE), b""
        found = []
        while data:
            length = int.from_bytes(data[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", data[3:9])
            found.append((kind, flags, stream, data[9 : 9 + length]))
            data = data[9 + length :]
        return found


class Exchange:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.stream_id = 0
        self.told: list[Any] = []

    def on_sent(self) -> None:
        self.told.append("sent")

    def on_data(self, data: bytes) -> None:
        self.told.append(data)

    def on_headers(self, headers: dict[str, str], ended: bool) -> None:
        self.told.append((headers, ended))

    def on_reset(self, error_code: int) -> None:
        self.told.append(("reset", error_code))

    def on_lost(self, reason: str) -> None:
        self.told.append(("lost", reason))


class Peer:
    """A connection, and the server's side of it."""

    def __init__(self, window: int = frames.LARGEST_WINDOW) -> None:
        self.lost = 0
        self.connection = Connection(HEADERS, window, self._count)
        self.wire = Wire()
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        self.encoder = Encoder()
        self.encoder.header_table_size = 0

    def _count(self) -> None:
        self.lost += 1

    def send(self, *sent: bytes, cut: int = 10**6) -> None:
        """Frames to the client, `cut` bytes at a time."""
        data = b"".join(sent)
        for start in range(0, len(data), cut):
            part = data[start : start + cut]
            while part:
                buffer = self.connection.get_buffer(-1)
                count = min(len(buffer), len(part))
                buffer[:count] = part[:count]
                self.connection.buffer_updated(count)
                part = part[count:]

    def settings(self, *values: tuple[int, int]) -> None:
        self.send(frames.settings(values))

    def received(self) -> list[tuple[int, int, int, bytes]]:
        self.connection._flush()
        return self.wire.frames()

    def begin(self, body: bytes) -> Exchange:
        exchange = Exchange()
        self.connection.send(exchange, body)
        return exchange

    def block(self, *headers: tuple[str, str]) -> bytes:
        return self.encoder.encode(headers)


@pytest.fixture
async def peer() -> Peer:
    peer = Peer()
    peer.settings()
    peer.received()
    return peer


async def test_a_connection_begins_with_preface_settings_and_a_large_window() -> None:
    peer = Peer(window=300)
    assert peer.wire.written.startswith(frames.PREFACE)
    begun = peer.received()
    assert begun == [
        (4, 0, 0, struct.pack(">HIHIHI", 1, 0, 2, 0, 4, 300)),
        (8, 0, 0, (2**31 - 1 - 65_535).to_bytes(4, "big")),
    ]
    assert not peer.connection.ready.done()
    peer.settings()
    assert peer.connection.ready.done()
    assert peer.received() == [(4, 1, 0, b"")]


async def test_a_request_is_headers_and_data_on_a_stream_of_its_own(peer: Peer) -> None:
    exchanges = [peer.begin(b"one"), peer.begin(b"two")]
    assert [exchange.told for exchange in exchanges] == [[], []]
    sent = peer.received()
    assert [(kind, flags, stream) for kind, flags, stream, _ in sent] == [
        (1, 4, 1), (0, 1, 1), (1, 4, 3), (0, 1, 3),
    ]  # fmt: skip
    assert [sent[1][3], sent[3][3]] == [b"one", b"two"]
    assert [tuple(pair) for pair in Decoder().decode(sent[0][3])] == HEADERS
    assert [exchange.told for exchange in exchanges] == [["sent"], ["sent"]]


@pytest.mark.parametrize("cut", [1, 2, 7, 100_000])
async def test_answers_are_the_same_however_the_bytes_are_cut(peer: Peer, cut: int) -> None:
    exchange = peer.begin(b"x")
    peer.received()
    end = peer.block(("grpc-status", "0"), ("grpc-message", "a%20b"))
    peer.send(
        frames.frame(1, 4, 1, peer.block((":status", "200"), ("content-type", "application/grpc"))),
        frames.frame(0, 0, 1, b"data"),
        frames.frame(0, 8, 1, b"\x03" + b"padded" + b"\0\0\0"),
        frames.frame(6, 0, 0, b"12345678"),
        frames.frame(2, 0, 1, b"\0\0\0\0\x01"),  # PRIORITY, of no meaning to us
        frames.frame(0, 0, 1, b"y" * 20_000),
        frames.frame(1, 1 | 0x20, 1, b"\0\0\0\0\x01" + end[:3]),
        frames.frame(9, 4, 1, end[3:]),
        cut=cut,
    )
    assert exchange.told == [
        "sent",
        ({":status": "200", "content-type": "application/grpc"}, False),
        b"data",
        b"padded",
        b"y" * 20_000,
        ({"grpc-status": "0", "grpc-message": "a%20b"}, True),
    ]
    assert peer.received() == [(6, 1, 0, b"12345678")]


async def test_a_body_waits_for_the_peer_s_windows(peer: Peer) -> None:
    first, second = peer.begin(b"a" * 100_000), peer.begin(b"b" * 10)
    sent = [frame for frame in peer.received() if frame[0] == 0]
    assert [len(payload) for *_, payload in sent] == [16_384, 16_384, 16_384, 16_383]
    assert all(stream == 1 and flags == 0 for _, flags, stream, _ in sent)
    assert (first.told, second.told) == (["sent"], ["sent"])
    peer.send(frames.window_update(0, 20))  # the second's stream has room, the first's has not
    assert peer.received() == [(0, 1, 3, b"b" * 10)]
    peer.send(frames.window_update(1, 5))
    assert peer.received() == [(0, 0, 1, b"a" * 5)]
    peer.send(frames.window_update(0, 100_000), frames.window_update(1, 100_000))
    rest = peer.received()
    assert sum(len(payload) for *_, payload in rest) == 100_000 - 65_535 - 5
    assert [flags for _, flags, *_ in rest] == [0, 0, 1]


async def test_the_peer_s_settings_change_windows_frames_and_streams(peer: Peer) -> None:
    peer.settings((4, 10), (5, 20_000), (3, 1))
    peer.received()
    first, second = peer.begin(b"a" * 30), peer.begin(b"b")
    assert [frame[:3] for frame in peer.received()] == [(1, 4, 1), (0, 0, 1)]
    assert second.told == []
    peer.settings((4, 25_000))
    assert peer.received()[1:] == [(0, 1, 1, b"a" * 20)]
    assert first.told == ["sent"]
    peer.send(frames.frame(1, 5, 1, peer.block(("grpc-status", "0"))))
    assert [frame[:3] for frame in peer.received()] == [(1, 4, 3), (0, 1, 3)]
    assert second.told == ["sent"]
    third = peer.begin(b"c" * 25_000)
    peer.settings((3, 2))
    peer.send(frames.frame(1, 5, 3, peer.block(("grpc-status", "0"))))
    data = [payload for kind, *_, payload in peer.received() if kind == 0]
    assert [len(payload) for payload in data] == [20_000, 5000]
    assert third.told == ["sent"]


async def test_a_cancelled_stream_is_reset_and_hears_no_more(peer: Peer) -> None:
    running, waiting = peer.begin(b"a"), Exchange()
    peer.settings((3, 1))
    peer.connection.send(waiting, b"b")
    peer.received()
    peer.connection.cancel(waiting)
    peer.connection.cancel(running)
    peer.connection.cancel(running)
    assert peer.received() == [(3, 0, 1, (8).to_bytes(4, "big"))]
    peer.send(frames.frame(0, 0, 1, b"late"), frames.frame(1, 5, 1, peer.block(("x", "y"))))
    assert (running.told, waiting.told) == (["sent"], [])
    assert peer.received() == []


async def test_an_answer_before_the_whole_request_is_sent_ends_it(peer: Peer) -> None:
    exchange = peer.begin(b"a" * 100_000)
    peer.received()
    peer.send(frames.frame(1, 5, 1, peer.block(("grpc-status", "8"))))
    assert exchange.told == ["sent", ({"grpc-status": "8"}, True)]
    assert peer.received() == [(3, 0, 1, (8).to_bytes(4, "big"))]
    peer.send(frames.window_update(0, 100_000))
    assert peer.received() == []


async def test_a_reset_and_a_loss_of_the_connection_are_told(peer: Peer) -> None:
    first, second = peer.begin(b"a"), peer.begin(b"b")
    peer.received()
    peer.send(frames.frame(3, 0, 1, (7).to_bytes(4, "big")))
    assert first.told == ["sent", ("reset", 7)]
    assert peer.connection.is_open
    peer.connection.connection_lost(None)
    assert second.told == ["sent", ("lost", "the connection broke: closed by the server")]
    assert not peer.connection.is_open
    assert peer.lost == 1


async def test_after_goaway_older_streams_go_on_and_younger_are_lost(peer: Peer) -> None:
    first, second = peer.begin(b"a"), peer.begin(b"b")
    peer.received()
    peer.send(frames.frame(7, 0, 0, struct.pack(">II", 1, 0) + b"bye"))
    assert not peer.connection.is_open
    assert peer.lost == 1
    assert second.told == ["sent", ("lost", "the server is going away bye")]
    peer.send(frames.frame(1, 5, 1, peer.block(("grpc-status", "0"))))
    assert first.told == ["sent", ({"grpc-status": "0"}, True)]
    peer.connection.connection_lost(None)
    assert peer.lost == 1


async def test_a_header_block_that_cannot_be_read_ends_the_connection(peer: Peer) -> None:
    exchange = peer.begin(b"a")
    peer.received()
    peer.send(frames.frame(1, 5, 1, b"\xff\xff\xff\xff"))
    assert exchange.told[1][0] == "lost"
    assert "header block" in exchange.told[1][1]
    assert peer.wire.closed
    assert not peer.connection.is_open


async def test_a_reader_with_a_small_window_gives_it_back_as_it_reads() -> None:
    peer = Peer(window=300)
    peer.settings()
    exchange = peer.begin(b"a")
    peer.received()
    peer.send(frames.frame(0, 0, 1, b"y" * 200))
    assert peer.received() == []
    peer.connection.read(exchange, 120)
    assert peer.received() == [(8, 0, 1, (120).to_bytes(4, "big"))]


async def test_the_connection_s_window_is_given_back_before_it_is_used_up(peer: Peer) -> None:
    exchange = peer.begin(b"a")
    peer.received()
    peer.connection._received = 2**30 - 10
    peer.send(frames.frame(0, 0, 1, b"y" * 20))
    assert peer.received() == [(8, 0, 0, (2**30 + 10).to_bytes(4, "big"))]
    assert exchange.told == ["sent", b"y" * 20]
