"""The requests of one process that are on their way."""

from __future__ import annotations

import asyncio
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
            timer.cancel()
            self._running.pop(record, None)
            self.ended += 1
            self.failed += record.status != "OK" and not record.cancelled
            self.tokens += record.tokens
            on_end(record)

        loop = asyncio.get_running_loop()
        if record.request.cancel_after == 0:
            timer = loop.call_later(_CANCEL_AT_ONCE, self._cancel, record)
        else:
            timer = loop.call_later(self._timeout + _GRACE, self._end_late, record)
        record.on_end = ended
        self.sent += 1
        self._running[record] = self._target.begin(payload, record)

    def give_up(self) -> None:
        """Ends all that run, with the run."""
        while self._running:
            record, exchange = self._running.popitem()
            record.end(NOT_SENT if record.sent is None else UNFINISHED, OVER)
            exchange.cancel()

    def _cancel(self, record: Record) -> None:
        exchange = self._running.pop(record)
        if record.sent is None:
            record.end("CANCELLED", "before it was on its way", cancelled=True)
        else:
            record.end("CANCELLED", cancelled=True)
        exchange.cancel()

    def _end_late(self, record: Record) -> None:
        exchange = self._running.pop(record)
        late = f"the server has not ended it after {self._timeout:g} s"
        record.end("DEADLINE_EXCEEDED", late)
        exchange.cancel()
