"""Messages between processes arrive as they were sent."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

import numpy as np
import pytest

from scheduler.core.front_end import Abort, EventBatch, FailureKind, SnapshotRequest
from scheduler.fronts.frames import LONGEST_BODY, FrameReader, frame
from scheduler.fronts.messages import Alive, Drain, MessageError, Started
from tests.scheduler.fronts import examples
from tests.scheduler.fronts.examples import plain


def received(data: bytes) -> list[object]:
    return list(FrameReader().feed(data))


@pytest.mark.parametrize("seed", range(5))
def test_every_message_comes_out_as_it_went_in(seed: int) -> None:
    sent = [*examples.messages(random.Random(seed)), Started(), Alive(), Drain()]
    got = received(b"".join(frame(message) for message in sent))
    assert plain(got) == plain(sent)


@pytest.mark.parametrize("seed", range(5))
def test_a_stream_may_be_cut_anywhere(seed: int) -> None:
    rng = random.Random(seed)
    sent = examples.messages(rng)
    data = b"".join(frame(message) for message in sent)
    reader, got, start = FrameReader(), [], 0
    while start < len(data):
        size = rng.choice([1, 2, 5, 64, 4096, 262_144])
        got.extend(reader.feed(data[start : start + size]))
        start += size
    assert plain(got) == plain(sent)


def test_a_message_is_out_as_soon_as_its_last_byte_is_in() -> None:
    data, reader = frame(Abort(1, FailureKind.CANCELLED)), FrameReader()
    assert list(reader.feed(data[:-1])) == []
    assert list(reader.feed(data[-1:])) == [Abort(1, FailureKind.CANCELLED)]
    assert list(reader.feed(frame(Alive()))) == [Alive()]


def test_no_message_comes_twice_if_its_taker_fails() -> None:
    reader = FrameReader()
    first, second = Abort(1, FailureKind.CANCELLED), Abort(2, FailureKind.CANCELLED)
    taken = reader.feed(frame(first) + frame(second))
    assert next(taken) == first
    taken.close()
    assert list(reader.feed(b"")) == [second]


def test_columns_cross_at_twelve_bytes_a_token() -> None:
    count = 10_000
    columns = np.arange(count, dtype=np.int64), np.arange(count, dtype=np.int32)
    assert len(frame(EventBatch(*columns))) < 12 * count + 20


def test_columns_of_another_integer_type_arrive_as_what_they_should_be() -> None:
    (got,) = received(frame(EventBatch(np.array([7], np.int32), np.array([9], np.int64))))
    assert plain(got) == plain(EventBatch(np.array([7], np.int64), np.array([9], np.int32)))


GOOD = frame(SnapshotRequest(5))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("=IB", 0, 99), "no message is of kind 99"),
        (struct.pack("=IB", LONGEST_BODY + 1, 1), f"a frame of {LONGEST_BODY + 1} bytes"),
        (struct.pack("=IB", 3, GOOD[4]) + b"\xc1\xc1\xc1", "not a message of kind SNAPSHOT_REQ"),
        (struct.pack("=IB", 2, frame(examples.batch(random.Random(0), []))[4]) + b"xy", "BATCH"),
        (b"HTTP/1.1 200 OK", "a frame of 1347703880 bytes"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(MessageError, match=message):
        received(GOOD + data)


def test_an_object_that_is_no_plain_data_is_not_sent() -> None:
    @dataclass
    class Other:
        pass

    with pytest.raises(TypeError):
        frame(EventBatch(np.empty(0, np.int64), np.empty(0, np.int32), [], [Other]))
