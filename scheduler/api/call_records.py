"""The books of the calls: each is opened once, closed once, counted once, told of once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from nanoserve.v1 import inference_pb2
from scheduler.api.call_record import Call, CallRecord
from scheduler.api.errors import CallError
from scheduler.api.output_stream import OutputStream
from scheduler.api.tracing import CallTrace, Metadata, NoSpans, Tracer, parse_trace_parent
from scheduler.core.front_end import CallTotals, Failure, Finished, FinishReason

log = logging.getLogger(__name__)

# A call that the front end ended waits so long, and so many do, for the engine's last event,
# which has its times. An engine answers within a step.
LATE_SECONDS = 10.0
MOST_LATE = 10_000

_REASONS = {
    inference_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    inference_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


class CallRecords:
    """Used on the event loop only. `totals` is what EnginePort.report wants; others may read
    it at any time."""

    def __init__(
        self,
        tracer: Tracer,
        tell: Sequence[Callable[[CallRecord], None]],
        log_text: bool = False,
        late_seconds: float = LATE_SECONDS,
        most_late: int = MOST_LATE,
    ) -> None:
        """`tell` gets every record. `log_text`: records have prompt and output."""
        self.totals = CallTotals()
        self._tracer = tracer
        self._tell = tell
        self._log_text = log_text
        self._late_seconds = late_seconds
        self._most_late = most_late
        self._submitted: dict[int, Call] = {}  # open, or closed and late
        self._late: dict[int, asyncio.TimerHandle] = {}  # the longest first

    def open(
        self, request: inference_pb2.GenerateRequest | None, metadata: Metadata | None
    ) -> Call:
        """None: a request that could not be decoded."""
        arrival = time.monotonic()
        request_id = request.request_id if request is not None else ""
        call = Call(request_id, arrival, self._begin_trace(metadata))
        call.request = request if self._log_text else None
        return call

    def _begin_trace(self, metadata: Metadata | None) -> CallTrace:
        try:
            return self._tracer.begin(parse_trace_parent(metadata))
        except Exception:
            log.exception("a call goes on without a trace")
            return NoSpans().begin(None)

    def submitted(self, call: Call, stream: OutputStream) -> None:
        call.stream = stream
        self._submitted[stream.handle] = call

    def passed_on(self, call: Call, response: inference_pb2.GenerateResponse) -> None:
        """The client has, or will have, this message."""
        count = len(response.token_ids)
        if count and not call.output_tokens:
            self.totals.prompt_tokens += call.prompt_tokens
        call.output_tokens += count
        self.totals.output_tokens += count
        if self._log_text:
            call.output.append(response.text)
        if response.finish_reason:
            self.totals.cached_tokens += response.usage.cached_tokens
            call.finish_reason = _REASONS[response.finish_reason]

    def answered(self, event: Finished | Failure) -> None:
        """The engine's last event of a call."""
        call = self._submitted.get(event.handle)
        if call is None or call.end is not None:
            return
        call.end = event
        if call.closed_at is not None:
            self._complete(call)

    def unauthenticated(self) -> None:
        """A call, of whatever method, that ended for want of a token."""
        self.totals.unauthenticated += 1

    def close(self, call: Call, error: CallError | None = None) -> None:
        """The end of the call towards its client, told to it or not: with `error`, or else
        finished, or else its client has gone. Of several the first counts."""
        if call.closed_at is not None:
            return
        call.closed_at = time.monotonic()
        finished = call.finish_reason is not None
        call.error = error if error or finished else call.departure(call.closed_at)
        _count(self.totals.outcomes, call.outcome.value)
        if call.refused:
            _count(self.totals.refusals, call.outcome.value)
        if call.stream is not None and call.end is None:
            self._await_engine(call.stream.handle)
        else:
            self._complete(call)

    def flush(self) -> None:
        """Tells of those that still wait for the engine."""
        for handle in list(self._late):
            self._complete(self._submitted[handle])

    def _await_engine(self, handle: int) -> None:
        loop, call = asyncio.get_running_loop(), self._submitted[handle]
        self._late[handle] = loop.call_later(self._late_seconds, self._complete, call)
        if len(self._late) > self._most_late:
            self._complete(self._submitted[next(iter(self._late))])

    def _complete(self, call: Call) -> None:
        """Forgets the call and tells of it. What fails in telling fails there."""
        if call.stream is not None:
            del self._submitted[call.stream.handle]
            if (timer := self._late.pop(call.stream.handle, None)) is not None:
                timer.cancel()
        record = call.record()
        for tell in (*self._tell, call.trace.end):
            try:
                tell(record)
            except Exception:
                log.exception("the end of request %r was not told", call.request_id)


def _count(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1
