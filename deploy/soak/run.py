"""One soak: faults and load at once, for a time, and then the books."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from deploy.soak.client import Answer, Outcome, ask
from deploy.soak.faults import Fault
from deploy.soak.questions import Question
from deploy.soak.stand import Memory, Stand
from nanoserve import AsyncClient, NanoserveError

_SAMPLE_SECONDS = 1.0
_REST_SECONDS = 30.0
_CHANNELS = 4
# Open files that a connection or two in passing may cost.
_SPARE_FILES = 8


@dataclass
class Result:
    """What a soak saw. `complaints`: one sentence each; a good soak has none."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)  # behaviour, status
    faults: list[Fault] = field(default_factory=list)
    tokens: int = 0
    mismatches: int = 0
    leaks: int = 0
    worker_starts: int = 0
    preemptions: int = 0
    memory: list[Memory] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    with_steps_in_flight: int = 0  # of the faults
    # Seconds from the moment that a new worker listens to the next token of any stream.
    recoveries: list[float] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(self.outcomes.values())


class Soak:
    """`streams` calls at a time for `seconds`, each asking what `question(index)` gives."""

    def __init__(
        self,
        stand: Stand,
        question: Callable[[int], Question],
        expected: Callable[[Question], Answer],
        faults: list[Fault],
        seconds: float,
        streams: int,
        progress: Callable[[str], None],
    ) -> None:
        self._stand = stand
        self._question = question
        self._expected = expected
        self._faults = faults
        self._seconds = seconds
        self._streams = streams
        self._progress = progress
        self._next = 0
        self._result = Result()
        self._recovered_at: float | None = None  # the listening_at whose recovery is known

    async def run(self) -> Result:
        began = time.monotonic()
        files = {one.name: one.files for one in self._stand.memory()}
        clients = [AsyncClient(self._stand.address) for _ in range(_CHANNELS)]
        streams = [
            asyncio.create_task(self._stream(clients[i % _CHANNELS], began + self._seconds))
            for i in range(self._streams)
        ]
        sampler = asyncio.create_task(self._sample(began))
        inflictor = asyncio.create_task(self._inflict(clients[0], began))
        await asyncio.gather(*streams, inflictor)
        sampler.cancel()
        if not self._stand.over:
            await self._check_rest(clients[0])
            await self._check_files(files)
        for client in clients:
            await client.close()
        self._result.worker_starts = self._stand.worker_starts
        return self._result

    async def _stream(self, client: AsyncClient, until: float) -> None:
        while time.monotonic() < until and not self._stand.over:
            question = self._question(self._next)
            self._next += 1
            self._count(question, await ask(client, question, self._expected, self._on_tokens))

    def _on_tokens(self) -> None:
        listening = self._stand.listening_at
        if listening is not None and listening != self._recovered_at:
            if self._recovered_at is not None:
                self._result.recoveries.append(time.monotonic() - listening)
            self._recovered_at = listening

    def _count(self, question: Question, outcome: Outcome) -> None:
        result = self._result
        result.outcomes[outcome.behaviour, outcome.status] += 1
        result.tokens += outcome.tokens
        result.mismatches += outcome.mismatch
        if outcome.complaint:
            where = f"request {question.index} ({question.behaviour})"
            result.complaints.append(f"{where}: {outcome.complaint}")

    async def _inflict(self, client: AsyncClient, began: float) -> None:
        for fault in self._faults:
            await asyncio.sleep(began + fault.at - time.monotonic())
            if self._stand.over:
                return
            with contextlib.suppress(NanoserveError):
                status = await client.status()
                self._result.with_steps_in_flight += status.steps_in_flight > 0
            await self._stand.inflict(fault)
            self._result.faults.append(fault)

    async def _sample(self, began: float) -> None:
        while True:
            self._result.memory += self._stand.memory()
            result, seconds = self._result, time.monotonic() - began
            self._progress(
                f"{seconds:.0f} of {self._seconds:.0f} s, {result.requests} requests, "
                f"{len(result.faults)} faults, {len(result.complaints)} complaints"
            )
            await asyncio.sleep(_SAMPLE_SECONDS)

    async def _check_rest(self, client: AsyncClient) -> None:
        """Once nobody asks, nobody runs or waits, and every block is free."""
        give_up = time.monotonic() + _REST_SECONDS
        while True:
            status = await client.status()
            busy = status.running_requests + status.waiting_requests
            lost = status.usable_blocks - status.free_blocks
            if not busy and not lost:
                break
            if time.monotonic() > give_up:
                self._result.leaks += busy + lost
                self._result.complaints.append(
                    f"at rest {busy} requests are left and {lost} blocks are not free"
                )
                break
            await asyncio.sleep(0.1)
        self._result.preemptions = status.preemptions

    async def _check_files(self, before: dict[str, int]) -> None:
        """The scheduler's, which lives through all of it."""
        for _ in range(100):
            files = next(m.files for m in self._stand.memory() if m.name == "scheduler")
            if files <= before["scheduler"] + _SPARE_FILES:
                return
            await asyncio.sleep(0.1)
        self._result.leaks += files - before["scheduler"]
        self._result.complaints.append(
            f"the scheduler has {files} files open, {before['scheduler']} before the load"
        )
