"""Random messages, as a busy engine and busy front ends would send them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import numpy as np

from scheduler.core.front_end import (
    Abort,
    CallTotals,
    EngineStatus,
    EventBatch,
    Failure,
    FailureKind,
    Finish,
    Finished,
    FinishReason,
    LatencyCounts,
    Limits,
    RequestUsage,
    Snapshot,
    SnapshotRequest,
    Submission,
)
from scheduler.core.penalties import NO_PENALTIES, Penalties
from tests.scheduler.logprob_columns import Entry, columns_of

LONG = 2**63 - 1


def usage(rng: random.Random) -> RequestUsage:
    seconds = rng.choice([None, rng.random()])
    return RequestUsage(rng.randrange(LONG), 3, rng.random(), seconds, 1e9 * rng.random(), 2, 1)


def finished(rng: random.Random, handle: int) -> Finished:
    stop = rng.choice([None, 0, 2**31 - 1])
    return Finished(handle, Finish(rng.choice(list(FinishReason)), stop, usage(rng)))


def failure(rng: random.Random, handle: int) -> Failure:
    message = rng.choice(["", "naïve \N{SNOWMAN} \x00 text", "x" * 3000])
    return Failure(
        handle,
        rng.choice(list(FailureKind)),
        message,
        rng.choice(["", "max_tokens"]),
        rng.choice([None, 1.5]),
        rng.choice([None, usage(rng)]),
    )


def snapshot(rng: random.Random, handle: int) -> Snapshot:
    count = rng.randrange(5)
    columns = [np.array([rng.randrange(2**31) for _ in range(count)], np.int32) for _ in range(6)]
    latency = LatencyCounts(np.array([0.1, 1.0]), np.array([3, 0, LONG]), rng.random())
    owners = rng.choice([None, np.arange(-2, 9, dtype=np.int32)])
    ids = [f"id-{i}" for i in range(count)]
    return Snapshot(handle, ids, *columns, np.random.rand(count), latency, latency, owners)


def batch(rng: random.Random, handles: Sequence[int]) -> EventBatch:
    """Tokens for any of `handles`, several for some; ends and snapshots for a few."""
    count = rng.choice([0, 1, 7, 300])
    chosen = [rng.choice(handles) for _ in range(count)] if handles else []
    ids = [rng.randrange(2**31) for _ in chosen]
    ending = rng.sample(list(handles), min(len(handles), rng.randrange(6)))
    ends = [rng.choice([finished, failure])(rng, handle) for handle in ending]
    snapshots = [snapshot(rng, handle) for handle in ending if rng.random() < 0.3]
    columns = np.array(chosen, np.int64), np.array(ids, np.int32)
    share = rng.choice([0.0, 0.5, 1.0])  # of tokens that have log-probabilities
    entries = [logprobs(rng, token) if rng.random() < share else None for token in ids]
    return EventBatch(*columns, ends, snapshots, columns_of(entries))


def logprobs(rng: random.Random, token: int) -> Entry:
    ids = [token, *(rng.randrange(2**31) for _ in range(rng.randrange(4)))]
    return ids, [-rng.randrange(4096) / 32 for _ in ids]


def submission(rng: random.Random, length: int) -> Submission:
    return Submission(
        handle=rng.randrange(2**40),
        request_id="r\N{SNOWMAN}" * rng.randrange(20),
        prompt_ids=np.array([rng.randrange(2**31) for _ in range(length)], np.int32),
        max_tokens=rng.choice([None, 5]),
        temperature=rng.random(),
        seed=rng.choice([None, 0, LONG]),
        stop_ids=frozenset(rng.randrange(50_000) for _ in range(rng.randrange(4))),
        arrival=rng.random() * 1e6,
        deadline=rng.choice([None, 1e6]),
        penalties=rng.choice([NO_PENALTIES, Penalties(1.3, rng.random(), -2.0)]),
        top_logprobs=rng.choice([None, 0, 20]),
    )


def status(rng: random.Random, **changes: object) -> EngineStatus:
    limits = rng.choice([None, Limits(8192, 49152, 64, 16, 2048)])
    counts = [rng.randrange(2**40) for _ in range(11)]
    made = EngineStatus(True, "", limits, 2**64 - 1, "cpu", *counts, rng.random())
    return dataclasses.replace(made, **changes)


def messages(rng: random.Random) -> list[object]:
    """At least one of each kind, in random order."""
    made = [
        status(rng),
        status(rng, ready=False, reason="the worker is away"),
        CallTotals({"stop": 3, "length": LONG}, {"queue full": 2}, 7, 9),
        CallTotals(),
        SnapshotRequest(5, block_map=rng.random() < 0.5),
        Abort(1, FinishReason.STOP, 17),
        *(Abort(2**40, kind) for kind in FailureKind),
        *(submission(rng, length) for length in (0, 1, 100_000)),
        *(batch(rng, range(3, 30)) for _ in range(10)),
        batch(rng, []),
    ]
    rng.shuffle(made)
    return made


def plain(value: object) -> object:
    """`value` in a form that compares: arrays as their type and numbers, a batch's ends in
    one order."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, EventBatch):
        value = dataclasses.replace(value, ends=sorted(value.ends, key=lambda end: end.handle))
    if dataclasses.is_dataclass(value):
        fields = [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
        return type(value), fields
    return [plain(part) for part in value] if isinstance(value, list) else value
