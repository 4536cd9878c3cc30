"""The messages between the engine's process and a front end's, as bytes and back.

Token ids and columns cross as raw bytes of their arrays, all else as msgpack. Both ends are
processes of one scheduler on one machine, so bytes have the machine's order.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import msgpack

from scheduler.core.front_end import (
    Abort,
    CallTotals,
    EngineStatus,
    EventBatch,
    Failure,
    FailureKind,
    Finished,
    FinishReason,
    Snapshot,
    SnapshotRequest,
    Submission,
)
from scheduler.core.logprobs import Logprobs

_COUNT = struct.Struct("=I")


class MessageError(ValueError):
    """Bytes that are no message of the kind they are said to be."""


@dataclass(frozen=True, slots=True)
class Started:
    """From a front end: its port is bound and it serves."""


@dataclass(frozen=True, slots=True)
class Alive:
    """From a front end, now and then: its loop turns."""


@dataclass(frozen=True, slots=True)
class Drain:
    """To a front end: refuse calls, let running ones finish, and end."""


@dataclass(frozen=True, slots=True)
class _WireAbort:
    """One of the two is None: msgpack would not tell their values apart."""

    handle: int
    failed: FailureKind | None
    finished: FinishReason | None
    output_tokens: int | None


# What most batches have nothing of. Ends by kind: the requests differ, so their order says nothing.
_WireRest = tuple[list[Finished], list[Failure], list[Snapshot], Logprobs | None]

Message = (
    Started
    | Alive
    | Drain
    | Submission
    | Abort
    | SnapshotRequest
    | CallTotals
    | EngineStatus
    | EventBatch
)


class Kind(enum.IntEnum):
    STARTED = enum.auto()
    ALIVE = enum.auto()
    DRAIN = enum.auto()
    SUBMISSION = enum.auto()
    ABORT = enum.auto()
    SNAPSHOT_REQUEST = enum.auto()
    TOTALS = enum.auto()
    STATUS = enum.auto()
    BATCH = enum.auto()


def _array_to_pair(value: Any) -> tuple[str, bytes]:
    if not isinstance(value, np.ndarray) or value.ndim != 1:
        raise TypeError(f"{type(value).__name__} cannot be sent between processes")
    return value.dtype.str, value.tobytes()


def _pair_to_array(kind: type, pair: Any) -> np.ndarray:
    if kind is not np.ndarray:
        raise TypeError(f"{kind.__name__} cannot be received from another process")
    dtype, data = pair
    return np.frombuffer(data, np.dtype(dtype))


_pack = msgpack.Encoder(enc_hook=_array_to_pair).encode


def _unpacker(kind: Any) -> Callable[[bytes | memoryview], Any]:
    return msgpack.Decoder(kind, dec_hook=_pair_to_array).decode


_unpack_abort = _unpacker(_WireAbort)
_unpack_rest = _unpacker(_WireRest)
_NO_REST = _pack(([], [], [], None))


def _pack_abort(abort: Abort) -> bytes:
    reason = abort.reason
    failed = reason if isinstance(reason, FailureKind) else None
    finished = reason if isinstance(reason, FinishReason) else None
    return _pack(_WireAbort(abort.handle, failed, finished, abort.output_tokens))


def _read_abort(body: bytes) -> Abort:
    abort: _WireAbort = _unpack_abort(body)
    reason = abort.failed or abort.finished
    if reason is None:
        raise MessageError(f"an abort of {abort.handle} without a reason")
    return Abort(abort.handle, reason, abort.output_tokens)


def _pack_batch(batch: EventBatch) -> bytes:
    rest = _NO_REST
    if batch.ends or batch.snapshots or batch.logprobs is not None:
        finished = [end for end in batch.ends if isinstance(end, Finished)]
        failures = [end for end in batch.ends if isinstance(end, Failure)]
        rest = _pack((finished, failures, batch.snapshots, batch.logprobs))
    handles = np.asarray(batch.handles, np.int64).tobytes()
    token_ids = np.asarray(batch.token_ids, np.int32).tobytes()
    return b"".join((_COUNT.pack(len(batch.handles)), handles, token_ids, rest))


def _read_batch(body: bytes) -> EventBatch:
    (count,) = _COUNT.unpack_from(body)
    start, ids, end = _COUNT.size, _COUNT.size + 8 * count, _COUNT.size + 12 * count
    finished, failures, snapshots, logprobs = _unpack_rest(memoryview(body)[end:])
    return EventBatch(
        np.frombuffer(body[start:ids], np.int64),
        np.frombuffer(body[ids:end], np.int32),
        [*finished, *failures],
        snapshots,
        logprobs,
    )


_PACKERS: dict[type, tuple[Kind, Callable[[Any], bytes]]] = {
    Started: (Kind.STARTED, _pack),
    Alive: (Kind.ALIVE, _pack),
    Drain: (Kind.DRAIN, _pack),
    Submission: (Kind.SUBMISSION, _pack),
    Abort: (Kind.ABORT, _pack_abort),
    SnapshotRequest: (Kind.SNAPSHOT_REQUEST, _pack),
    CallTotals: (Kind.TOTALS, _pack),
    EngineStatus: (Kind.STATUS, _pack),
    EventBatch: (Kind.BATCH, _pack_batch),
}
_READERS: dict[int, Callable[[bytes], Message]] = {
    Kind.STARTED: _unpacker(Started),
    Kind.ALIVE: _unpacker(Alive),
    Kind.DRAIN: _unpacker(Drain),
    Kind.SUBMISSION: _unpacker(Submission),
    Kind.ABORT: _read_abort,
    Kind.SNAPSHOT_REQUEST: _unpacker(SnapshotRequest),
    Kind.TOTALS: _unpacker(CallTotals),
    Kind.STATUS: _unpacker(EngineStatus),
    Kind.BATCH: _read_batch,
}


def pack(message: Message) -> tuple[Kind, bytes]:
    kind, pack_body = _PACKERS[type(message)]
    return kind, pack_body(message)


def read(kind: int, body: bytes) -> Message:
    """Raises MessageError."""
    reader = _READERS.get(kind)
    if reader is None:
        raise MessageError(f"no message is of kind {kind}")
    try:
        return reader(body)
    except (ValueError, struct.error) as error:  # msgspec's errors are ValueErrors
        raise MessageError(f"not a message of kind {Kind(kind).name}: {error}") from error
