"""What a generation gives: chunks as they come, and the completion they add up to."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from nanoserve.v1 import inference_pb2 as pb


class FinishReason(enum.Enum):
    """Why an output ended."""

    STOP = "stop"  # an end token, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or no room for more in the model or the pool
    OTHER = "other"  # a reason that this client is too old to know


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request used. Times are seconds on the server's clock, from arrival."""

    prompt_tokens: int
    output_tokens: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float
    preemptions: int
    cached_tokens: int  # of the prompt, found in the prefix cache and not computed


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the most likely tokens."""

    token_id: int
    logprob: float  # natural logarithm, at most 0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probabilities at one output token, of the model before penalties and temperature."""

    logprob: float  # the output token's own
    top: tuple[TopLogprob, ...]  # as many as top_logprobs, the most likely first


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of the output: the text and tokens since the last one.

    Either may be empty, and a token's text may come later than its id. The last
    chunk has `finish_reason` and `usage`; `matched` is then the token id or the stop
    string that ended the output, if one did. `logprobs` are those of the token ids, one for
    each, if the request asked for them.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    matched: int | str | None = None
    usage: Usage | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole output. `finish_reason` and `usage` are None if it was closed early."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    matched: int | str | None
    usage: Usage | None
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each token id, if they were asked for


def chunk_from(response: pb.GenerateResponse) -> Chunk:
    """The chunk that a response carries."""
    matched = response.WhichOneof("matched")
    return Chunk(
        request_id=response.request_id,
        text=response.text,
        token_ids=tuple(response.token_ids),
        finish_reason=_finish_reason_from(response.finish_reason),
        matched=getattr(response, matched) if matched else None,
        usage=_usage_from(response.usage) if response.HasField("usage") else None,
        logprobs=tuple(_token_logprobs_from(one) for one in response.logprobs),
    )


def completion_from(request_id: str, chunks: Iterable[Chunk]) -> Completion:
    """The chunks of one request, joined."""
    text: list[str] = []
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    last = Chunk(request_id, "", ())
    for last in chunks:
        text.append(last.text)
        token_ids.extend(last.token_ids)
        logprobs.extend(last.logprobs)
    return Completion(
        request_id=last.request_id,
        text="".join(text),
        token_ids=tuple(token_ids),
        finish_reason=last.finish_reason,
        matched=last.matched,
        usage=last.usage,
        logprobs=tuple(logprobs),
    )


def _finish_reason_from(value: int) -> FinishReason | None:
    if value == pb.FINISH_REASON_UNSPECIFIED:
        return None
    if value == pb.FINISH_REASON_STOP:
        return FinishReason.STOP
    if value == pb.FINISH_REASON_LENGTH:
        return FinishReason.LENGTH
    return FinishReason.OTHER


def _token_logprobs_from(one: pb.TokenLogprobs) -> TokenLogprobs:
    top = tuple(TopLogprob(likely.token_id, likely.logprob) for likely in one.top)
    return TokenLogprobs(one.logprob, top)


def _usage_from(usage: pb.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        queue_seconds=usage.queue_seconds,
        first_token_seconds=usage.first_token_seconds,
        total_seconds=usage.total_seconds,
        preemptions=usage.preemptions,
        cached_tokens=usage.cached_tokens,
    )
