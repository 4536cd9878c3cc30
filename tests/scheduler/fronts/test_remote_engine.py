"""The engine from another process: its events come, its end is one for every call."""

from __future__ import annotations

import dataclasses
import random
import socket
from collections.abc import AsyncIterator

import numpy as np
import pytest

from scheduler.core.front_end import (
    Abort,
    CallTotals,
    EngineStatus,
    EventBatch,
    Failure,
    FailureKind,
    FinishReason,
    SnapshotRequest,
)
from scheduler.fronts.connection import Connection
from scheduler.fronts.frames import frame
from scheduler.fronts.messages import Alive, Drain, Started
from scheduler.fronts.remote_engine import RemoteEngine
from tests.scheduler.fronts import examples
from tests.scheduler.fronts.examples import plain
from tests.waiting import until


class Pair:
    """A remote engine for a front end, and the other end of its socket."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.received: list[object] = []
        self.parent = Connection(theirs, self.received.append, lambda _: None)
        self.batches: list[EventBatch] = []
        self.statuses: list[EngineStatus] = []
        self.calls: list[str] = []
        self.engine = RemoteEngine(
            ours,
            self,
            on_drain=lambda: self.calls.append("drain"),
            on_lost=lambda: self.calls.append("lost"),
        )

    def deliver(self, batch: EventBatch) -> None:
        self.batches.append(batch)

    def status_changed(self, status: EngineStatus) -> None:
        self.statuses.append(status)

    @property
    def heard(self) -> list[object]:
        """What the parent got, but signs of life."""
        return [message for message in self.received if message != Alive()]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    yield pair
    pair.parent.end("the test is over")
    await until(lambda: "lost" in pair.calls)


def numbered(handle: int):
    return dataclasses.replace(examples.submission(random.Random(handle), 4), handle=handle)


async def test_what_a_front_end_asks_for_arrives_in_order(pair: Pair) -> None:
    asked = [numbered(1), Abort(1, FinishReason.STOP, 3), SnapshotRequest(2)]
    pair.engine.start()
    pair.engine.submit(asked[0])
    pair.engine.abort(asked[1])
    pair.engine.ask_snapshot(asked[2])
    pair.engine.drain(0.0)  # is for the parent to say
    await until(lambda: len(pair.heard) == 4)
    assert plain(pair.heard) == plain([Started(), *asked])


async def test_events_and_statuses_come_and_only_changes_of_readiness_are_told(
    pair: Pair,
) -> None:
    assert (pair.engine.status().ready, pair.engine.status().limits) == (False, None)
    first = examples.status(random.Random(1), loop_turned_at=1.0)
    busier = dataclasses.replace(first, running=3, loop_turned_at=2.0)
    away = dataclasses.replace(first, ready=False, reason="away", loop_turned_at=3.0)
    batch = examples.batch(random.Random(2), [1, 2, 3])
    for message in (first, busier, batch, away, busier, Drain()):
        pair.parent.send(frame(message))
    await until(lambda: pair.calls == ["drain"])
    assert plain(pair.batches) == plain([batch])
    assert pair.statuses == [first, away]
    assert pair.engine.status() == away  # the late one is older


async def test_totals_are_told_as_they_grow_and_for_the_last_time_at_the_end(pair: Pair) -> None:
    totals = CallTotals()
    pair.engine.report(totals)
    pair.engine.start()
    await until(lambda: CallTotals() in pair.heard)
    totals.outcomes["stop"] = 1
    totals.output_tokens = 9
    await until(lambda: pair.heard[-1] == CallTotals({"stop": 1}, {}, 0, 9))
    told = len(pair.heard)
    totals.outcomes["stop"] = 2
    await pair.engine.close()
    await until(lambda: len(pair.heard) > told)
    assert pair.heard[told:] == [CallTotals({"stop": 2}, {}, 0, 9)]


async def test_each_open_call_ends_once_if_the_engines_process_dies(pair: Pair) -> None:
    for handle in (1, 2, 3):
        pair.engine.submit(numbered(handle))
    ended = EventBatch(np.empty(0, np.int64), np.empty(0, np.int32))
    ended.ends.append(examples.finished(random.Random(0), 2))
    pair.parent.send(frame(ended))
    pair.parent.end("killed")
    await until(lambda: pair.calls == ["lost"])
    assert not pair.engine.status().ready
    assert pair.statuses[-1].reason == "the engine's process is gone"
    pair.engine.submit(numbered(4))
    await until(lambda: len(pair.batches) == 3)
    gone = [
        Failure(handle, FailureKind.UNAVAILABLE, "the engine's process is gone")
        for handle in (1, 3, 4)
    ]
    assert [end for batch in pair.batches[1:] for end in batch.ends] == gone
