"""What is known of one Generate call, while it runs and once it has ended."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from nanoserve.v1 import inference_pb2
from scheduler.api.caller import CALLER
from scheduler.api.errors import CallError
from scheduler.api.output_stream import OutputStream
from scheduler.api.tracing import CallTrace
from scheduler.core.front_end import Failure, FailureKind, Finished, FinishReason, RequestUsage


@dataclass(frozen=True, slots=True)
class CallRecord:
    """How one call went; made once, when its last word is known. Times are seconds from its
    arrival, or durations, on the monotonic clock."""

    request_id: str  # as sent, where it was refused for it
    outcome: str  # the name of a FinishReason or FailureKind, in lower case
    status: str  # of gRPC: "OK", "CANCELLED", ...
    prompt_tokens: int  # 0: it ended before its prompt was encoded
    output_tokens: int  # passed on to the client
    total_seconds: float  # to the call's end
    # Of the engine. None: it never took the call, or never answered.
    queue_seconds: float | None = None
    first_token_seconds: float | None = None  # None too: it made none
    last_token_seconds: float | None = None
    token_seconds: float | None = None  # mean gap between tokens; None: less than two
    preemptions: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0  # of the prompt
    error: str = ""  # what the client was told
    caller: str = ""  # the name of the token that let the call in
    trace_id: str = ""
    prompt: object = None  # text, messages or ids; None unless texts are logged
    output: str | None = None


class Call:
    """One call on its way. `end` stays None until the engine's last event is here."""

    def __init__(self, request_id: str, arrival: float, trace: CallTrace) -> None:
        """`arrival` is on time.monotonic(), seconds, like every time here."""
        self.request_id = request_id
        self.arrival = arrival
        self.trace = trace
        self.caller = CALLER.get()
        self.deadline: float | None = None
        self.deadline_is_the_clients = False  # not the server's maximum
        self.stream: OutputStream | None = None  # once submitted
        self.prompt_tokens = 0
        self.output_tokens = 0
        # Where texts are logged.
        self.request: inference_pb2.GenerateRequest | None = None
        self.output: list[str] = []
        self.finish_reason: FinishReason | None = None  # once the client was told
        self.error: CallError | None = None
        self.closed_at: float | None = None
        self.end: Finished | Failure | None = None

    @property
    def outcome(self) -> FinishReason | FailureKind:
        """Of a closed call: what its client was told."""
        if self.error is not None:
            return self.error.kind
        if self.finish_reason is None:
            raise ValueError(f"call {self.request_id!r} has not ended")
        return self.finish_reason

    @property
    def refused(self) -> bool:
        """Whether the closed call was never taken by the engine."""
        if self.stream is None:
            return True
        end = self.end
        return isinstance(end, Failure) and end.usage is None and self.outcome is end.kind

    @property
    def usage(self) -> RequestUsage | None:
        if isinstance(self.end, Finished):
            return self.end.finish.usage
        return None if self.end is None else self.end.usage

    def departure(self, now: float) -> CallError:
        """How a call ended that its client ended, or its deadline. A client that gives up at
        its deadline cancels, and that is known here before the deadline passes here: it began
        with the call's arrival, and gRPC sends it rounded up by as much as 1 %."""
        if self.deadline is not None:
            share = 0.01 * (self.deadline - self.arrival)
            slack = 0.02 + share if self.deadline_is_the_clients else 0.0
            if now >= self.deadline - slack:
                return CallError(FailureKind.DEADLINE, "the call's deadline passed")
        return CallError(FailureKind.CANCELLED, "the client cancelled or went away")

    def record(self) -> CallRecord:
        """Of a closed call."""
        if self.closed_at is None:
            raise ValueError(f"call {self.request_id!r} has not ended")
        usage = self.usage
        first, last, gap = self._token_times()
        code = grpc.StatusCode.OK if self.error is None else self.error.code
        return CallRecord(
            request_id=self.request_id,
            outcome=self.outcome.name.lower(),
            status=code.name,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            total_seconds=self.closed_at - self.arrival,
            queue_seconds=usage.queue_seconds if usage else None,
            first_token_seconds=first,
            last_token_seconds=last,
            token_seconds=gap,
            preemptions=usage.preemptions if usage else 0,
            recomputed_tokens=usage.recomputed_tokens if usage else 0,
            cached_tokens=usage.cached_tokens if usage else 0,
            error=self._error_text(),
            caller=self.caller,
            trace_id=self.trace.trace_id,
            prompt=_prompt(self.request) if self.request else None,
            output="".join(self.output) if self.request else None,
        )

    def _token_times(self) -> tuple[float | None, float | None, float | None]:
        """Of the first and the last token that count, and the mean gap: the engine's own
        where it tells them, since its tokens may come here several at a time."""
        stream, usage = self.stream, self.usage
        if stream is None or not stream.num_tokens:
            return None, None, None
        first, last = stream.first_token_at - self.arrival, stream.last_token_at - self.arrival
        if usage is not None and usage.first_token_seconds is not None:
            first = usage.first_token_seconds
            if isinstance(self.end, Finished) and not stream.ended_by_text:
                last = usage.total_seconds
        count = stream.num_tokens
        return first, last, (last - first) / (count - 1) if count > 1 else None

    def _error_text(self) -> str:
        if self.error is None:
            return ""
        # A chat template may say anything of the messages that it refuses.
        if self.error.field.startswith("chat") and self.request is None:
            return f"{self.error.field}: refused"
        return self.error.message


def _prompt(request: inference_pb2.GenerateRequest) -> object:
    """As it was sent."""
    match request.WhichOneof("prompt"):
        case "text":
            return request.text
        case "token_ids":
            return list(request.token_ids.ids)
        case "chat":
            return [{"role": m.role, "content": m.content} for m in request.chat.messages]
    return None
