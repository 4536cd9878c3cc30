"""Snapshots of the engine, each shared by all who ask at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.api.status import SnapshotFields
from scheduler.core.front_end import EnginePort, Snapshot, SnapshotRequest

# A snapshot this old is still given out, so that the engine takes at most 20 a second with
# a block map and 20 without, however many ask. Half the shortest interval of a watcher, which
# therefore never sees one twice.
FRESH_SECONDS = 0.05
# The engine answers between two steps. One that does not is stuck, or in a very long step.
ANSWER_SECONDS = 1.0


@dataclass(slots=True)
class _Question:
    """One that the engine has not answered yet."""

    block_map: bool
    answer: asyncio.Future[SnapshotFields]


class SharedSnapshots:
    """Asks the engine and hands its answers out. Used on one event loop only."""

    def __init__(self, engine: EnginePort, handles: Iterator[int]) -> None:
        self._engine = engine
        self._handles = handles
        self._open: dict[int, _Question] = {}  # at most one of each kind
        self._last: dict[bool, tuple[float, SnapshotFields]] = {}  # by block_map, with its time

    async def take(self, block_map: bool) -> SnapshotFields | None:
        """None if the engine does not answer within ANSWER_SECONDS. One with a block map may
        come without being asked for."""
        loop = asyncio.get_running_loop()
        for kind, (taken_at, fields) in self._last.items():
            if kind >= block_map and loop.time() - taken_at < FRESH_SECONDS:
                return fields
        answer = self._question(block_map).answer
        try:
            # Others wait for the same answer, which must outlive this caller.
            return await asyncio.wait_for(asyncio.shield(answer), ANSWER_SECONDS)
        except TimeoutError:
            return None

    def deliver(self, snapshot: Snapshot) -> None:
        """An answer of the engine. Called on the event loop."""
        question = self._open.pop(snapshot.handle, None)
        if question is None:
            return
        fields = SnapshotFields(snapshot)
        self._last[question.block_map] = (asyncio.get_running_loop().time(), fields)
        question.answer.set_result(fields)

    def _question(self, block_map: bool) -> _Question:
        """One that will do, asked already if possible: a stuck engine is asked no more than
        it has to answer once it goes on."""
        for question in self._open.values():
            if question.block_map >= block_map:
                return question
        handle = next(self._handles)
        answer: asyncio.Future[SnapshotFields] = asyncio.get_running_loop().create_future()
        question = self._open[handle] = _Question(block_map, answer)
        self._engine.ask_snapshot(SnapshotRequest(handle, block_map))
        return question
