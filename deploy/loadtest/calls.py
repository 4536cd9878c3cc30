"""The requests of one process that are on their way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from deploy.loadtest.orders import Counts
from deploy.loadtest.record import Record
from deploy.loadtest.target import Exchange, Target
from deploy.loadtest.timeline import NOT_SENT, UNFINISHED

# When a request is cancelled that the plan gives no token to: late enough to have reached
# the server, early enough to find it waiting.
_CANCEL_AT_ONCE = 0.005  # seconds
# The server is to end what is late; the tool does so only if that fails.
_GRACE = 5.0  # seconds
_WATCH_SECONDS = 1.0
OVER = "the run was over"


class Calls:
    """Sends requests and sees that each ends: by the server, by the plan, or with the
    run. `timeout` is in seconds."""

    def __init__(self, target: Target, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._running: dict[Record, Exchange] = {}
        self.sent = self.ended = self.failed = self.tokens = 0

    @property
    def counts(self) -> Counts:
        return Counts(self.sent, self.ended, self.failed, self.tokens)

    def send(self, payload: Any, record: Record, on_end: Callable[[Record], None]) -> None:
        """`on_end` is called when the record has ended, never before this returns."""

        def ended(_record: Record) -> None:
            self._running.pop(record, None)
            self.ended += 1
            self.failed += record.status != "OK" and not record.cancelled
            self.tokens += record.tokens
            on_end(record)

        record.on_end = ended
        self.sent += 1
        self._running[record] = self._target.begin(payload, record)
        if record.request.cancel_after == 0:
            asyncio.get_running_loop().call_later(_CANCEL_AT_ONCE, self._cancel, record)

    async def watch(self) -> None:
        """Ends what the server ought to have ended, for ever. One look at all now and then
        costs less than a timer for each."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            late = time.monotonic() - self._timeout - _GRACE
            for record in [record for record in self._running if record.planned < late]:
                exchange = self._running.pop(record)
                reason = f"the server has not ended it after {self._timeout:g} s"
                record.end("DEADLINE_EXCEEDED", reason)
                exchange.cancel()

    def give_up(self) -> None:
        """Ends all that run, with the run."""
        while self._running:
            record, exchange = self._running.popitem()
            record.end(NOT_SENT if record.sent is None else UNFINISHED, OVER)
            exchange.cancel()

    def _cancel(self, record: Record) -> None:
        exchange = self._running.pop(record, None)
        if exchange is None:
            return  # it has ended by itself
        if record.sent is None:
            record.end(NOT_SENT, "cancelled, as planned, before it was on its way")
        else:
            record.end("CANCELLED", cancelled=True)
        exchange.cancel()
