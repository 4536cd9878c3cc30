"""Asks one question and judges what came of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from deploy.soak.logprobs import wrong_logprobs
from deploy.soak.questions import Question
from nanoserve import AsyncClient, Chunk, NanoserveError, TokenLogprobs

# Seconds for a call that must end by itself. A recovery takes seconds, several in a row more, and
# on a machine that has other work to do ten times as long.
PATIENCE = 300.0
_SLOW_READ_SECONDS = 0.15
_SLOW_TOKENS = 50
_SILENT_SECONDS = 4.0
_LATE_SECONDS = 5.0  # that a deadline's end may come late on a busy machine

_REFUSALS = {
    "malformed": grpc.StatusCode.INVALID_ARGUMENT,
    "crash": grpc.StatusCode.INTERNAL,
    "hang": grpc.StatusCode.INTERNAL,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a whole answer must be."""

    token_ids: tuple[int, ...]
    text: str | None = None  # None: the server has no tokenizer
    logprobs: tuple[TokenLogprobs, ...] = ()  # none, or one for each token
    tolerance: float = 0.0  # of logprobs


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended. `complaint` is empty if it ended as it must."""

    behaviour: str
    status: str  # "OK", a gRPC status code's name, or "CLOSED" by ourselves
    tokens: int
    complaint: str = ""
    mismatch: bool = False  # tokens, text or log-probabilities not of an undisturbed run

    @property
    def is_to_be_retried(self) -> bool:
        """Whether the server was away, as it may be: the same is to be asked again, whole."""
        return self.status == grpc.StatusCode.UNAVAILABLE.name and not self.complaint


@dataclass(eq=False, slots=True)
class Call:
    """What is known of a call while it is open. `on_tokens` is called whenever it gets some;
    `was_away` tells whether since that moment (time.monotonic()) the server was, by our doing."""

    on_tokens: Callable[[Call], None] = lambda _: None
    was_away: Callable[[float], bool] = lambda _: False
    began: float = field(default_factory=time.monotonic)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    text: str = ""
    finishes: int = 0
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    # Its last tokens came without text: a stop string may still take it away.
    holds_back: bool = False

    def took(self, chunk: Chunk) -> None:
        self.tokens.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs)
        self.text += chunk.text
        self.finishes += chunk.finish_reason is not None
        if chunk.usage is not None:
            self.cached_tokens = chunk.usage.cached_tokens
        if chunk.token_ids:
            self.holds_back = not chunk.text
            self.on_tokens(self)


async def ask(
    client: AsyncClient, question: Question, expected: Callable[[Question], Answer], call: Call
) -> Outcome:
    """`expected` is asked for questions that get an answer."""
    status, why = "OK", ""
    options: dict[str, Any] = dict(question.options)
    try:
        timeout = question.timeout or PATIENCE
        async with client.generate(timeout=timeout, **options) as generation:
            async for chunk in generation:
                num_before = len(call.tokens)
                call.took(chunk)
                await _dawdle(question.behaviour, num_before)
                if question.behaviour == "cancel" and len(call.tokens) >= question.cancel_after:
                    status = "CLOSED"
                    break
    except NanoserveError as error:
        status, why = error.code.name, f" ({error.message})"
    done = Outcome(question.behaviour, status, len(call.tokens))
    refusal = _REFUSALS.get(question.behaviour)
    if refusal is None and (complaint := _wrong_tokens(status, call, expected(question))):
        return Outcome(question.behaviour, status, len(call.tokens), complaint, mismatch=True)
    if done.is_to_be_retried and call.was_away(call.began):
        return done
    if refusal is not None:
        return _complain(done, "" if status == refusal.name else f"ended {status}{why}")
    complaint = _wrong_end(question, status, call)
    return _complain(done, complaint and complaint + why)


async def _dawdle(behaviour: str, num_tokens: int) -> None:
    """After a message before which there were so many tokens."""
    if behaviour == "slow" and num_tokens < _SLOW_TOKENS:
        await asyncio.sleep(_SLOW_READ_SECONDS)
    elif behaviour == "silent" and not num_tokens:
        await asyncio.sleep(_SILENT_SECONDS)


def _complain(outcome: Outcome, complaint: str) -> Outcome:
    return Outcome(outcome.behaviour, outcome.status, outcome.tokens, complaint)


def _wrong_tokens(status: str, call: Call, answer: Answer) -> str:
    """Whole answers are compared whole, others as far as they go."""
    tokens, text = tuple(call.tokens), call.text
    right, right_text, right_logprobs = answer.token_ids, answer.text, answer.logprobs
    if status != "OK":
        right, right_logprobs = right[: len(tokens)], right_logprobs[: len(tokens)]
        right_text = None if right_text is None else right_text[: len(text)]
    if tokens != right:
        pairs = enumerate(itertools.zip_longest(tokens, right))
        at, (got, wanted) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        return f"token {at} of {len(tokens)} is {got} and must be {wanted}, of {len(right)}"
    if right_text is not None and text != right_text:
        return f"the text is {text!r} and must be {right_text!r}"
    return wrong_logprobs(call.logprobs, right_logprobs, answer.tolerance)


def _wrong_end(question: Question, status: str, call: Call) -> str:
    seconds = time.monotonic() - call.began
    if status == "OK":
        return "" if call.finishes == 1 else f"{call.finishes} messages said that it ended"
    if question.behaviour == "cancel" and status == "CLOSED":
        return ""
    if question.behaviour == "deadline" and status == "DEADLINE_EXCEEDED":
        late = seconds - (question.timeout or 0)
        return "" if late < _LATE_SECONDS else f"the deadline was told {late:.1f} s late"
    return f"ended {status} after {seconds:.1f} s"
