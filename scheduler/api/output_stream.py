"""One call's output, between the engine's events and the client's reads."""

from __future__ import annotations

import asyncio
import time

from nanoserve.v1 import inference_pb2
from scheduler.api.errors import CallError
from scheduler.api.output_logprobs import OutputLogprobs
from scheduler.api.output_text import OutputText
from scheduler.core.front_end import (
    Failure,
    Finish,
    Finished,
    FinishReason,
    RequestUsage,
    Submission,
)
from scheduler.core.logprobs import TokenLogprobs

# Characters. A message of that many takes at most 1 MiB, a quarter of what gRPC clients
# accept unless told otherwise.
LONGEST_TEXT = 1 << 18

_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}


class OutputStream:
    """Takes tokens as fast as the engine makes them, gives messages as fast as the client
    reads them. What comes in between is joined into one message, or a few if it is long;
    the buffer is bounded, since an output is at most max_model_len tokens. Used on the
    event loop only.
    """

    def __init__(self, submission: Submission, text: OutputText) -> None:
        self.handle = submission.handle
        self.request_id = submission.request_id
        self.num_tokens = 0
        # Of tokens that count, time.monotonic(), seconds; 0 before there are any.
        self.first_token_at = 0.0
        self.last_token_at = 0.0
        self.ended_by_text = False  # whether a token completed a stop string
        self._submission = submission
        self._text = text
        self._token_ids: list[int] = []
        top = submission.top_logprobs
        self._logprobs = None if top is None else OutputLogprobs(top)
        self._late_text = ""  # of tokens already sent, too long for their message
        self._matched_stop: str | None = None
        self._end: Finished | Failure | None = None
        self._news = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the last event is known: nothing that comes later counts."""
        return self._end is not None

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> bool:
        """Adds a token, and its `logprobs` if the request asks for them; true if it completes a
        stop string. Later ones are dropped. Raises ValueError if they are not what was asked
        for."""
        if self._matched_stop is not None or self._end is not None:
            return False
        if self._logprobs is not None:
            self._logprobs.push(logprobs)
        self.last_token_at = time.monotonic()
        if not self.num_tokens:
            self.first_token_at = self.last_token_at
        self.num_tokens += 1
        self._token_ids.append(token_id)
        self._matched_stop = self._text.push(token_id)
        self._news.set()
        self.ended_by_text = self._matched_stop is not None
        return self.ended_by_text

    def end(self, event: Finished | Failure) -> None:
        """The engine's last event; of several the first counts. A stop string found at an
        earlier token, or at the one that reached the length, is the reason, and no failure
        undoes it; a stop token wins at its own token."""
        if self._end is not None:
            return
        if isinstance(event, Finished) and self._matched_stop is None:
            self._matched_stop = self._text.finish()
        if isinstance(event, Failure) and self._matched_stop is not None:
            event = self._finished_by_match(event.usage)
        self._end = event
        self._news.set()

    async def next(self) -> inference_pb2.GenerateResponse:
        """Waits for news; the last message has a finish reason. Raises CallError if the
        request failed."""
        await self._news.wait()
        self._news.clear()
        if isinstance(self._end, Failure):
            raise CallError.of(self._end)
        response = inference_pb2.GenerateResponse(request_id=self.request_id)
        self._put_tokens(response)
        if not self._token_ids:  # text never comes before its tokens
            text = self._late_text + self._text.take()
            self._late_text = text[LONGEST_TEXT:]
            response.text = text[:LONGEST_TEXT]
        if self._token_ids or self._late_text:
            self._news.set()
        elif self._end is not None:
            self._set_finish(response, self._end.finish)
        return response

    def _put_tokens(self, response: inference_pb2.GenerateResponse) -> None:
        """All there are; with log-probabilities no more than make a message of bearable size."""
        if self._logprobs is None:
            response.token_ids.extend(self._token_ids)
            self._token_ids.clear()
            return
        count = min(len(self._token_ids), self._logprobs.most_at_a_time)
        response.token_ids.extend(self._token_ids[:count])
        response.logprobs.extend(self._logprobs.take(count))
        del self._token_ids[:count]

    def _finished_by_match(self, told: RequestUsage | None) -> Finished:
        """For a request that the engine ended badly after its last token that counts. The
        times of its tokens are as seen here; what else it used is unknown if not `told`."""
        arrival = self._submission.arrival
        usage = RequestUsage(
            prompt_tokens=len(self._submission.prompt_ids),
            output_tokens=self.num_tokens,
            queue_seconds=told.queue_seconds if told else 0.0,
            first_token_seconds=self.first_token_at - arrival,
            total_seconds=self.last_token_at - arrival,
            preemptions=told.preemptions if told else 0,
            recomputed_tokens=told.recomputed_tokens if told else 0,
            cached_tokens=told.cached_tokens if told else 0,
        )
        return Finished(self.handle, Finish(FinishReason.STOP, None, usage))

    def _set_finish(self, response: inference_pb2.GenerateResponse, finish: Finish) -> None:
        reason, usage = finish.reason, finish.usage
        own = self._matched_stop is not None and (
            finish.stop_token is None or self.num_tokens < usage.output_tokens
        )
        if own:
            reason = FinishReason.STOP
            response.matched_stop = self._matched_stop or ""
        elif finish.stop_token is not None:
            response.matched_token_id = finish.stop_token
        response.finish_reason = _REASONS[reason]
        response.usage.CopyFrom(
            inference_pb2.Usage(
                prompt_tokens=usage.prompt_tokens,
                output_tokens=self.num_tokens if own else usage.output_tokens,
                queue_seconds=usage.queue_seconds,
                first_token_seconds=usage.first_token_seconds or usage.total_seconds,
                total_seconds=usage.total_seconds,
                preemptions=usage.preemptions,
                cached_tokens=usage.cached_tokens,
            )
        )
