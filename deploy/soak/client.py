"""Asks one question and judges what came of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from deploy.soak.questions import Question
from nanoserve import AsyncClient, NanoserveError

# For a call that must end by itself; a recovery takes seconds, several in a row more.
PATIENCE = 120.0
_SLOW_READ_SECONDS = 0.15
_LATE_SECONDS = 3.0  # that a deadline's end may come late on a busy machine

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended. `complaint` is empty if it ended as it must."""

    behaviour: str
    status: str  # "OK", a gRPC status code's name, or "CLOSED" by ourselves
    tokens: int
    complaint: str = ""
    mismatch: bool = False  # tokens or text other than those of an undisturbed run


async def ask(
    client: AsyncClient,
    question: Question,
    expected: Callable[[Question], Answer],
    on_tokens: Callable[[], None] = lambda: None,
) -> Outcome:
    """`expected` is asked for questions that get an answer; `on_tokens` is called whenever
    tokens come."""
    tokens: list[int] = []
    text: list[str] = []
    began = time.monotonic()
    status, finishes = "OK", 0
    options: dict[str, Any] = dict(question.options)
    try:
        timeout = question.timeout or PATIENCE
        async with client.generate(timeout=timeout, **options) as generation:
            async for chunk in generation:
                tokens.extend(chunk.token_ids)
                if chunk.token_ids:
                    on_tokens()
                text.append(chunk.text)
                finishes += chunk.finish_reason is not None
                if question.behaviour == "slow":
                    await asyncio.sleep(_SLOW_READ_SECONDS)
                if question.behaviour == "cancel" and len(tokens) >= question.cancel_after:
                    status = "CLOSED"
                    break
    except NanoserveError as error:
        status = error.code.name
    seconds = time.monotonic() - began
    done = Outcome(question.behaviour, status, len(tokens))
    if (refusal := _REFUSALS.get(question.behaviour)) is not None:
        return _complain(done, "" if status == refusal.name else f"ended {status}")
    answer = expected(question)
    if complaint := _wrong_tokens(status, tuple(tokens), "".join(text), answer):
        return Outcome(question.behaviour, status, len(tokens), complaint, mismatch=True)
    return _complain(done, _wrong_end(question, status, finishes, seconds))


def _complain(outcome: Outcome, complaint: str) -> Outcome:
    return Outcome(outcome.behaviour, outcome.status, outcome.tokens, complaint)


def _wrong_tokens(status: str, tokens: tuple[int, ...], text: str, answer: Answer) -> str:
    """Whole answers are compared whole, others as far as they go."""
    right, right_text = answer.token_ids, answer.text
    if status != "OK":
        right = right[: len(tokens)]
        right_text = None if right_text is None else right_text[: len(text)]
    if tokens != right:
        pairs = enumerate(itertools.zip_longest(tokens, right))
        at, (got, wanted) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        return f"token {at} of {len(tokens)} is {got} and must be {wanted}, of {len(right)}"
    if right_text is not None and text != right_text:
        return f"the text is {text!r} and must be {right_text!r}"
    return ""


def _wrong_end(question: Question, status: str, finishes: int, seconds: float) -> str:
    if status == "OK":
        return "" if finishes == 1 else f"{finishes} messages said that it ended"
    if question.behaviour == "cancel" and status == "CLOSED":
        return ""
    if question.behaviour == "deadline" and status == "DEADLINE_EXCEEDED":
        late = seconds - (question.timeout or 0)
        return "" if late < _LATE_SECONDS else f"the deadline was told {late:.1f} s late"
    return f"ended {status} after {seconds:.1f} s"
