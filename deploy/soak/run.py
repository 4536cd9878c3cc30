"""One soak: faults and load at once, for a time, and then the books."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from deploy.soak.client import PATIENCE, Answer, Call, Outcome, ask
from deploy.soak.faults import KINDS, Fault
from deploy.soak.questions import PENALTIES, Question
from deploy.soak.recovery import Recoveries, Recovery
from deploy.soak.stand import Memory, Stand
from nanoserve import AsyncClient, NanoserveError, ServerStatus

_SAMPLE_SECONDS = 1.0
_REST_SECONDS = 120.0  # a worker that was killed last starts again, on whatever machine
_RETRY_SECONDS = 0.5
_CHANNELS = 4
# Open files that a connection or two in passing may cost.
_SPARE_FILES = 8
_LATE_READERS = ("slow", "silent")


@dataclass(frozen=True, slots=True)
class Inflicted:
    """A fault, and what it came upon."""

    fault: Fault
    steps_in_flight: int = 0
    running: int = 0
    prefilling: int = 0  # of those that run: no token yet
    half_matched: int = 0  # streams whose last tokens a stop string may still take away


@dataclass
class Result:
    """What a soak saw. `complaints`: one sentence each; a good soak has none."""

    seconds: float  # of load
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)  # behaviour, status
    faults: list[Inflicted] = field(default_factory=list)
    tokens: int = 0
    cached_tokens: int = 0  # of prompts whose output ended well
    logprob_tokens: int = 0  # those that came with log-probabilities
    penalized_tokens: int = 0  # those of requests with penalties
    mismatches: int = 0
    leaks: int = 0
    starts: dict[str, int] = field(default_factory=dict)  # by server
    preemptions: int = 0
    memory: list[Memory] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Those that were asked again are counted once."""
        return sum(self.outcomes.values()) - self.asked_again

    @property
    def asked_again(self) -> int:
        return sum(n for (_, status), n in self.outcomes.items() if status == "UNAVAILABLE")


class Soak:
    """`streams` calls at a time for `seconds`, or until the last of the `faults` if those take
    longer, each asking what `question` gives for an index and the seconds since the beginning."""

    def __init__(
        self,
        stand: Stand,
        question: Callable[[int, float], Question],
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
        self._result = Result(seconds)
        self._open: dict[Call, Question] = {}
        self._recoveries = Recoveries(stand.worker)
        self._clients: dict[str, list[AsyncClient]] = {}
        self._all_inflicted = False

    async def run(self) -> Result:
        began = time.monotonic()
        files = {one.name: one.files for one in self._stand.memory()}
        for address in self._stand.addresses:
            self._clients[address] = [AsyncClient(address) for _ in range(_CHANNELS)]
        streams = [asyncio.create_task(self._stream(i, began)) for i in range(self._streams)]
        sampler = asyncio.create_task(self._sample(began))
        inflictor = asyncio.create_task(self._inflict(began))
        await self._stand.while_up([*streams, inflictor])
        sampler.cancel()
        if not self._stand.is_over:
            await self._check_rest()
            await self._check_files(files)
        for client in itertools.chain.from_iterable(self._clients.values()):
            await client.close()
        self._result.starts = self._stand.starts
        self._result.recoveries = self._recoveries.done
        return self._result

    async def _stream(self, number: int, began: float) -> None:
        while True:
            at = time.monotonic() - began
            if at >= self._seconds and self._all_inflicted:
                return
            question = self._question(self._next, at)
            self._next += 1
            await self._ask(number, question)

    async def _ask(self, number: int, question: Question) -> None:
        """Until it is answered, whatever happens to schedulers."""
        give_up = time.monotonic() + PATIENCE
        while True:
            address = self._stand.address
            call = Call(self._recoveries.got_tokens, partial(self._was_away, address))
            self._open[call] = question
            client = self._clients[address][number % _CHANNELS]
            outcome = await ask(client, question, self._expected, call)
            del self._open[call]
            self._recoveries.ended(call)
            self._result.cached_tokens += call.cached_tokens
            self._count(question, outcome)
            if not outcome.is_to_be_retried:
                return
            if time.monotonic() > give_up:
                self._complain(question, f"unavailable for {PATIENCE:g} s")
                return
            await asyncio.sleep(_RETRY_SECONDS)

    def _was_away(self, address: str, since: float) -> bool:
        return self._stand.absences.touch(address, since, time.monotonic())

    def _count(self, question: Question, outcome: Outcome) -> None:
        result = self._result
        result.outcomes[outcome.behaviour, outcome.status] += 1
        result.tokens += outcome.tokens
        if "top_logprobs" in question.options:
            result.logprob_tokens += outcome.tokens
        if not question.options.keys().isdisjoint(PENALTIES):
            result.penalized_tokens += outcome.tokens
        result.mismatches += outcome.mismatch
        if outcome.complaint:
            self._complain(question, outcome.complaint)

    def _complain(self, question: Question, complaint: str) -> None:
        where = f"request {question.index} ({question.behaviour})"
        self._result.complaints.append(f"{where}: {complaint}")
        # Not at the end alone: a soak may take hours.
        print(f"! {where}: {complaint}", file=sys.stderr, flush=True)

    async def _inflict(self, began: float) -> None:
        for fault in self._faults:
            await asyncio.sleep(began + fault.at - time.monotonic())
            inflicted = await self._look(fault)
            await self._stand.inflict(fault)
            self._result.faults.append(inflicted)
        self._all_inflicted = True

    async def _look(self, fault: Fault) -> Inflicted:
        """What the fault comes upon, asked for the moment before."""
        status = await self._status(rows=True)
        if fault.kind == "kill":
            calls = {c for c, q in self._open.items() if q.behaviour not in _LATE_READERS}
            self._recoveries.killed(calls, sum(row.computed_tokens for row in status.rows))
        if KINDS[fault.kind].ends == "scheduler":
            self._result.preemptions += status.preemptions
        return Inflicted(
            fault,
            status.steps_in_flight,
            len(status.rows),
            sum(not row.output_tokens for row in status.rows),
            sum(c.holds_back and "stop" in q.options for c, q in self._open.items()),
        )

    async def _sample(self, began: float) -> None:
        while True:
            self._result.memory += self._stand.memory()
            result, seconds = self._result, time.monotonic() - began
            self._progress(
                f"{seconds:.0f} of {self._seconds:.0f} s, {result.requests} requests, "
                f"{len(result.faults)} faults, {len(result.complaints)} complaints"
            )
            await asyncio.sleep(_SAMPLE_SECONDS)

    async def _status(self, *, rows: bool = False) -> ServerStatus:
        """Of the scheduler that there is; one that is about to be there is waited for. Raises
        NanoserveError if there is none for PATIENCE seconds."""
        give_up = time.monotonic() + PATIENCE
        while True:
            async with AsyncClient(self._stand.address) as client:
                try:
                    return await client.status(rows=rows, timeout=5)
                except NanoserveError:
                    if time.monotonic() > give_up:
                        raise
            await asyncio.sleep(_RETRY_SECONDS)

    async def _check_rest(self) -> None:
        """Once nobody asks, nobody runs or waits, and every block is free."""
        give_up = time.monotonic() + _REST_SECONDS
        while True:
            status = await self._status()
            busy = status.running_requests + status.waiting_requests
            lost = status.usable_blocks - status.free_blocks
            if status.ready and not busy and not lost:
                break
            if time.monotonic() > give_up:
                self._result.leaks += busy + lost
                self._result.complaints.append(
                    f"at rest {busy} requests are left and {lost} blocks are not free, "
                    f"{status.reason or 'and it is ready'}"
                )
                break
            await asyncio.sleep(0.1)
        self._result.preemptions += status.preemptions

    async def _check_files(self, before: dict[str, int]) -> None:
        """Those that the servers have open at rest."""
        for _ in range(100):
            files = {one.name: one.files for one in self._stand.memory()}
            more = {name: files[name] - before[name] for name in files}
            if max(more.values()) <= _SPARE_FILES:
                return
            await asyncio.sleep(0.1)
        for name, extra in more.items():
            if extra > _SPARE_FILES:
                self._result.leaks += extra
                self._result.complaints.append(
                    f"the {name} has {files[name]} files open, {before[name]} before the load"
                )
