"""One process's part of the load, in an event loop of its own.

All of it are callbacks, not tasks: what a message or the clock sets off happens at once, not
behind all that the loop has to do.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from deploy.loadtest.calls import OVER, Calls
from deploy.loadtest.conversation import Conversation, token_count
from deploy.loadtest.orders import Counts, Looped, Order, Scheduled, Setup, Start
from deploy.loadtest.record import Record
from deploy.loadtest.stock import Opening, Stock
from deploy.loadtest.target import Target
from deploy.loadtest.timeline import NOT_DUE, Timeline
from deploy.loadtest.workload import Request, Workload

# Requests encoded before an order starts; later ones meanwhile. Of users at least so many, that a
# few who are answered at once never wait for the next.
_PREPARED, _PREPARED_OF_USERS = 20_000, 16
_SENT_TOGETHER = 32  # requests begun between two writes to the sockets
_LONGEST_WAIT = 0.2  # seconds until a stop is noticed
# A user whose request failed waits at least this long: a server that is gone would
# otherwise be asked as fast as the loop turns.
_AFTER_FAILURE = 0.1  # seconds


class Generator:
    """Carries out one order at a time: `prepare`, then `run`."""

    def __init__(self, setup: Setup, target: Target) -> None:
        self._setup = setup
        self._plan = setup.plan
        self._target = target
        self._workload = Workload(setup.plan, setup.vocab_size)
        self._calls = Calls(target, setup.plan.request_timeout)
        self._stock = Stock((), self._open, 0)
        self._records: list[Record] = []
        self._timers: dict[asyncio.TimerHandle, Callable[[], None]] = {}
        self._stage = 0
        self._open_ends = 0  # conversations and users that are not over
        self.is_stopped = False
        self.think = setup.plan.think

    @property
    def counts(self) -> Counts:
        """Of the order that runs."""
        return self._calls.counts

    def stop(self) -> None:
        """Nothing more is sent, and what runs is given up."""
        self.is_stopped = True
        self._calls.give_up()
        timers, self._timers = self._timers, {}
        for timer, callback in timers.items():
            timer.cancel()
            callback()

    def prepare(self, order: Order) -> None:
        size = _PREPARED
        if isinstance(order, Looped):
            size = min(_PREPARED, max(_PREPARED_OF_USERS, 2 * order.users))
        self._stock = Stock(order.conversations, self._open, size)
        self._stock.fill()
        self._calls = Calls(self._target, self._plan.request_timeout)
        self._records, self._stage = [], order.stage

    async def run(self, order: Order, start: Start) -> list[Timeline]:
        """Returns when every request has ended or was given up."""
        chores = [self._stock.keep_filled(), self._calls.watch()]
        tasks = [asyncio.create_task(chore) for chore in chores]
        if isinstance(order, Scheduled):
            await self._pace((start.at + order.times).tolist(), self._begin)
            give_up = time.monotonic() + self._plan.drain
        else:
            until = start.at + order.seconds
            await self._pace([start.at] * order.users, lambda moment: self._use(moment, until))
            give_up = until + self._plan.drain
        while self._open_ends and not self.is_stopped and time.monotonic() < give_up:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        was_stopped = self.is_stopped
        self.stop()
        self.is_stopped = was_stopped
        origin, measured_from = self._setup.origin, start.measured_from
        return [record.timeline(origin, measured_from) for record in self._records]

    async def _pace(self, moments: list[float], begin: Callable[[float], None]) -> None:
        """Calls `begin` at each moment; returns after the last."""
        loop = asyncio.get_running_loop()
        all_begun = loop.create_future()
        coming = iter(moments)
        planned = next(coming, math.inf)

        def begin_due() -> None:
            """Called by the loop's clock, so that it waits for at most one turn of the loop."""
            nonlocal planned
            now = time.monotonic()
            for _ in range(_SENT_TOGETHER):
                if planned > now and not (self.is_stopped and planned < math.inf):
                    break
                begin(planned)
                planned = next(coming, math.inf)
            if planned == math.inf:
                all_begun.set_result(None)
            elif planned <= now or self.is_stopped:
                loop.call_soon(begin_due)  # what was begun goes out first
            else:
                loop.call_at(min(planned, now + _LONGEST_WAIT), begin_due)

        begin_due()
        await all_begun

    def _begin(self, planned: float) -> None:
        """The next conversation, on schedule."""
        opening = self._stock.take()
        if opening is None:
            return
        if self.is_stopped:
            self._record(opening.request, planned).end(NOT_DUE, OVER)
            self.refuse(opening.later_turns, planned, OVER)
            return
        self._open_ends += 1
        Conversation(self, opening.later_turns, math.inf, self._over).start(opening, planned)

    def _over(self, _last: Record) -> None:
        self._open_ends -= 1

    def _use(self, planned: float, until: float) -> None:
        """The next conversation of a user, who takes another when it is over."""
        if self.is_stopped or planned >= until or (opening := self._stock.take()) is None:
            return
        self._open_ends += 1

        def go_on(last: Record) -> None:
            failed = last.status not in ("OK", "CANCELLED")
            pause = max(self.think, _AFTER_FAILURE if failed else 0.0)
            again = (last.ended or 0.0) + pause
            self.at(again, lambda: use_again(again))

        def use_again(again: float) -> None:
            self._open_ends -= 1
            self._use(again, until)

        Conversation(self, opening.later_turns, until, go_on).start(opening, planned)

    # What a conversation needs: Host.

    def send(
        self, request: Request, payload: Any, planned: float, on_end: Callable[[Record], None]
    ) -> Record:
        record = self._record(request, planned)
        record.prompt_tokens = token_count([request.prompt])
        if self._plan.turns > 1:
            record.answer = []
        self._calls.send(payload, record, on_end)
        return record

    def refuse(self, indices: Iterator[int], planned: float, reason: str) -> None:
        for index in indices:
            self._record(self._workload.request(index), planned).end(NOT_DUE, reason)

    def encode(self, index: int, history: list[Any]) -> tuple[Request, Any]:
        request = self._workload.request(index)
        return request, self._target.encode(request, history, self._request_id(index))

    def at(self, moment: float, callback: Callable[[], None]) -> None:
        if self.is_stopped or moment <= time.monotonic():
            callback()
            return

        def call_back() -> None:
            del self._timers[timer]
            callback()

        timer = asyncio.get_running_loop().call_at(moment, call_back)
        self._timers[timer] = callback

    def _open(self, conversation: int) -> Opening:
        turns = self._turns(conversation)
        return Opening(*self.encode(next(turns), []), turns)

    def _turns(self, conversation: int) -> Iterator[int]:
        """Indices of its requests; a warm-up conversation, below 0, has one."""
        if conversation < 0:
            return iter((conversation,))
        first, turns = conversation * self._plan.turns, self._plan.turns
        end = first + turns if self._plan.requests is None else self._plan.requests
        return iter(range(first, min(first + turns, end)))

    def _record(self, request: Request, planned: float) -> Record:
        record = Record(request, planned, self._stage, self._request_id(request.index))
        self._records.append(record)
        return record

    def _request_id(self, index: int) -> str:
        return f"{self._setup.run_id}-{index}"
