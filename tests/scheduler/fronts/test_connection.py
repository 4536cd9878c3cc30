"""The socket between two processes: nobody waits for a peer, and no frame is torn."""

from __future__ import annotations

import asyncio
import socket
import threading

import numpy as np
import pytest

from scheduler.core.front_end import Abort, EventBatch, FailureKind
from scheduler.fronts.connection import Connection
from scheduler.fronts.frames import FrameReader, frame
from scheduler.fronts.messages import Alive
from tests.waiting import until


class End:
    """A connection and what came over it."""

    def __init__(self, sock: socket.socket, **bound: int) -> None:
        self.messages: list[object] = []
        self.ends: list[str] = []
        self.connection = Connection(sock, self.messages.append, self.ends.append, **bound)


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def batch(value: int, size: int) -> bytes:
    return frame(EventBatch(np.full(size, value, np.int64), np.full(size, value, np.int32)))


async def test_a_peer_that_does_not_read_holds_nobody_up_and_loses_nothing(pair) -> None:
    ours, theirs = pair
    end, reader, got = End(ours), FrameReader(), []
    for value in range(200):
        end.connection.send(batch(value, 2000))  # 4.8 MB: far more than a socket takes
    assert end.ends == []
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    while len(got) < 200:
        got.extend(reader.feed(await loop.sock_recv(theirs, 1 << 16)))
    assert [int(part.handles[0]) for part in got] == list(range(200))
    assert all((part.token_ids == part.handles).all() for part in got)
    end.connection.end("done")
    theirs.close()


async def test_frames_of_several_threads_stay_whole(pair) -> None:
    ours, other = End(pair[0]), End(pair[1])
    each = 300

    def send(value: int) -> None:
        for _ in range(each):
            ours.connection.send(batch(value, value))

    threads = [threading.Thread(target=send, args=(value,)) for value in (1, 700, 5000)]
    for thread in threads:
        thread.start()
    await until(lambda: len(other.messages) == 3 * each)
    for thread in threads:
        thread.join()
    sizes = [len(part.handles) for part in other.messages]
    assert sorted(sizes) == [1] * each + [700] * each + [5000] * each
    assert all((part.handles == len(part.handles)).all() for part in other.messages)
    ours.connection.end("done")


async def test_a_peer_with_too_much_waiting_is_given_up_once(pair) -> None:
    ours, theirs = pair
    end = End(ours, most_waiting=1_000_000)
    for value in range(100):
        end.connection.send(batch(value, 2000))
    assert len(end.connection._waiting) < 1_000_000 + len(batch(0, 2000))
    await until(lambda: bool(end.ends))
    end.connection.send(frame(Alive()))
    end.connection.end("again")
    assert end.ends == ["it does not read what it is sent"]
    theirs.close()


async def test_the_peers_end_is_told_after_its_last_message(pair) -> None:
    ours, other = End(pair[0]), End(pair[1])
    last = Abort(1, FailureKind.CANCELLED)
    other.connection.send(frame(last))
    other.connection.end("enough")
    await until(lambda: bool(ours.ends))
    assert (ours.messages, ours.ends) == ([last], ["it closed its socket"])
    assert other.ends == ["enough"]


async def test_a_peer_that_sends_no_frames_is_given_up(pair) -> None:
    end = End(pair[0])
    pair[1].sendall(b"GET / HTTP/1.1\r\n")
    await until(lambda: bool(end.ends))
    assert end.messages == []
    assert "a frame of" in end.ends[0]
    pair[1].close()
