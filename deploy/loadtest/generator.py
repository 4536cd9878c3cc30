"""One process's part of the load, in an event loop of its own."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

from deploy.loadtest.orders import Counts, Looped, Order, Scheduled, Setup, Start
from deploy.loadtest.player import play
from deploy.loadtest.record import Record
from deploy.loadtest.target import Exchange, Target
from deploy.loadtest.timeline import NOT_DUE, Timeline
from deploy.loadtest.workload import Request, Workload

# Requests encoded before an order starts; later ones when they are due.
_PREPARED = 20_000
_LONGEST_SLEEP = 0.2  # seconds until a stop is noticed
_SENT_TOGETHER = 32  # requests begun between two writes to the sockets
_OVER = "the run was over"

Begun = tuple[Record, Exchange]


class Generator:
    """Carries out one order at a time: `prepare`, then `run`."""

    def __init__(self, setup: Setup, target: Target) -> None:
        self._setup = setup
        self._plan = setup.plan
        self._target = target
        self._workload = Workload(setup.plan, setup.vocab_size)
        self._stage = 0
        self._records: list[Record] = []
        self._prepared: dict[int, tuple[Request, Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._sent = self._ended = self._failed = self._tokens = 0

    @property
    def counts(self) -> Counts:
        return Counts(self._sent, self._ended, self._failed, self._tokens)

    def stop(self) -> None:
        """Nothing more is sent, and what runs is given up."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    def prepare(self, order: Order) -> None:
        most = _PREPARED if isinstance(order, Scheduled) else min(_PREPARED, 2 * order.users)
        self._prepared = {}
        for conversation in itertools.islice(order.conversations, most):
            first = next(self._turns(int(conversation)))
            self._prepared[first] = self._encode(first, [])
        self._records, self._stage = [], order.stage
        self._sent = self._ended = self._failed = self._tokens = 0

    async def run(self, order: Order, start: Start) -> list[Timeline]:
        """Returns when every request has ended or was given up."""
        if isinstance(order, Scheduled):
            await self._send_scheduled(order, start.at)
            give_up = time.monotonic() + self._plan.drain
        else:
            await self._sleep_until(start.at)
            self._start_users(order, start.at)
            give_up = start.at + order.seconds + self._plan.drain
        if self._tasks:
            left = give_up - time.monotonic()
            await asyncio.wait(self._tasks, timeout=max(0, left) if left < math.inf else None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for record in self._records:
            if record.ended is None:  # its task was cancelled before it ran
                give_up(record)
        origin, measured_from = self._setup.origin, start.measured_from
        return [record.timeline(origin, measured_from) for record in self._records]

    async def _send_scheduled(self, order: Scheduled, start: float) -> None:
        loop = asyncio.get_running_loop()
        all_sent = loop.create_future()
        moments = (start + order.times).tolist()
        due = zip(order.conversations.tolist(), moments, strict=True)
        coming = next(due, None)

        begun: list[tuple[Begun, Iterator[int]]] = []

        def send_due() -> None:
            """Called by the loop's clock, so that it waits for at most one turn of the loop."""
            nonlocal coming
            now = time.monotonic()
            for _ in range(_SENT_TOGETHER):
                if coming is None or not (coming[1] <= now or self._stopped):
                    break
                if first := self._begin_or_refuse(*coming):
                    begun.append(first)
                coming = next(due, None)
            else:
                loop.call_soon(send_due)  # what was begun goes out first
                return
            # Their tasks wait until all that is due is on its way.
            while begun:
                self._spawn(self._converse(*begun.pop(), math.inf))
            if coming is None:
                all_sent.set_result(None)
            else:
                loop.call_at(min(coming[1], now + _LONGEST_SLEEP), send_due)

        send_due()
        await all_sent

    def _begin_or_refuse(
        self, conversation: int, planned: float
    ) -> tuple[Begun, Iterator[int]] | None:
        """Its first request, and the turns that are left."""
        turns = self._turns(conversation)
        if self._stopped:
            self._refuse(turns, planned, _OVER)
            return None
        return self._begin(next(turns), planned, []), turns

    def _start_users(self, order: Looped, start: float) -> None:
        conversations = iter(order.conversations)
        for _ in range(order.users):
            self._spawn(self._use(conversations, start, start + order.seconds))

    async def _use(self, conversations: Iterator[int], planned: float, until: float) -> None:
        """One user: takes the next conversation when his last one is over."""
        while planned < until and (conversation := next(conversations, None)) is not None:
            turns = self._turns(conversation)
            first = self._begin(next(turns), planned, [])
            planned = await self._converse(first, turns, until) + self._plan.think
            await self._sleep_until(planned)

    async def _converse(self, first: Begun, later_turns: Iterator[int], until: float) -> float:
        """Plays a conversation, in which each turn needs the answer to the one before.
        Returns when its last request ended."""
        record, exchange = first
        history: list[Any] = []
        while True:
            await self._play(record, exchange)
            ended = record.ended or time.monotonic()
            planned = ended + self._plan.think
            index = next(later_turns, None)
            if index is None:
                return ended
            later_turns = itertools.chain([index], later_turns)
            if record.status != "OK":
                self._refuse(later_turns, planned, "the turn before it did not end well")
                return ended
            await self._sleep_until(planned)
            if planned >= until:
                self._refuse(later_turns, planned, _OVER)
                return ended
            history += [record.request.prompt, _joined(record)]
            record, exchange = self._begin(next(later_turns), planned, history)

    async def _play(self, record: Record, exchange: Exchange) -> None:
        try:
            await play(exchange, record, self._plan.request_timeout)
        finally:
            self._ended += 1
            self._failed += record.status != "OK" and not record.cancelled
            self._tokens += record.tokens

    def _begin(self, index: int, planned: float, history: list[Any]) -> tuple[Record, Exchange]:
        prepared = self._prepared.pop(index, None)
        request, payload = prepared or self._encode(index, history)
        record = self._record(request, planned)
        if not isinstance(request.prompt, str):
            record.prompt_tokens = request.prompt_len + sum(map(len, history))
        if self._plan.turns > 1:
            record.answer = []
        self._sent += 1
        return record, self._target.begin(payload, record)

    def _refuse(self, indices: Iterator[int], planned: float, reason: str) -> None:
        for index in indices:
            self._record(self._workload.request(index), planned).end(NOT_DUE, reason)

    def _record(self, request: Request, planned: float) -> Record:
        record = Record(request, planned, self._stage, self._request_id(request.index))
        self._records.append(record)
        return record

    def _encode(self, index: int, history: list[Any]) -> tuple[Request, Any]:
        request = self._workload.request(index)
        return request, self._target.encode(request, history, self._request_id(index))

    def _request_id(self, index: int) -> str:
        return f"{self._setup.run_id}-{index}"

    def _turns(self, conversation: int) -> Iterator[int]:
        """Indices of its requests; a warm-up conversation, below 0, has one."""
        if conversation < 0:
            return iter((conversation,))
        first, turns = conversation * self._plan.turns, self._plan.turns
        end = first + turns if self._plan.requests is None else self._plan.requests
        return iter(range(first, min(first + turns, end)))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sleep_until(self, moment: float) -> None:
        while not self._stopped and (left := moment - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _LONGEST_SLEEP))


def _joined(record: Record) -> tuple[int, ...] | str:
    """The answer, as a prompt is."""
    answer: Any = record.answer or ()
    return "".join(answer) if isinstance(record.request.prompt, str) else tuple(answer)
