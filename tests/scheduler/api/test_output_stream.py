"""One call's output: what ends it, and what its reader gets."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from nanoserve.v1 import inference_pb2
from scheduler.api.errors import CallError
from scheduler.api.output_logprobs import LONGEST
from scheduler.api.output_stream import OutputStream
from scheduler.api.output_text import OutputText
from scheduler.core.front_end import (
    Failure,
    FailureKind,
    Finish,
    Finished,
    FinishReason,
    RequestUsage,
    Submission,
)
from tests.scheduler.api.calls import joined_logprobs

STOP = inference_pb2.FINISH_REASON_STOP
LATE_FAILURES = [FailureKind.DEADLINE, FailureKind.UNAVAILABLE, FailureKind.INTERNAL]


def stream_of(
    tokenizer=None, stop=(), arrival: float = 0.0, top_logprobs: int | None = None
) -> OutputStream:
    submission = Submission(
        handle=1,
        request_id="r",
        prompt_ids=np.array([5, 6, 7], np.int32),
        max_tokens=None,
        temperature=0.0,
        seed=None,
        stop_ids=frozenset(),
        arrival=arrival,
        top_logprobs=top_logprobs,
    )
    return OutputStream(submission, OutputText(tokenizer, (5, 6, 7), stop, False))


@pytest.mark.parametrize("kind", LATE_FAILURES)
async def test_a_failure_after_a_matched_stop_string_does_not_undo_it(
    smollm2, smollm2_reference, kind
):
    """The engine fails the request before it hears of the match."""
    arrival = time.monotonic()
    stream = stream_of(smollm2, ["two"], arrival)
    ids = smollm2_reference.encode("one two three").ids
    assert [stream.push(token_id) for token_id in ids] == [False, True, False]
    stream.end(Failure(1, kind, "too late"))
    response = await stream.next()
    assert (response.text, list(response.token_ids)) == ("one ", ids[:2])
    assert (response.finish_reason, response.matched_stop) == (STOP, "two")
    usage = response.usage
    assert (usage.prompt_tokens, usage.output_tokens, usage.preemptions) == (3, 2, 0)
    assert usage.queue_seconds == 0
    assert 0 <= usage.first_token_seconds <= usage.total_seconds <= time.monotonic() - arrival


async def test_what_a_late_failure_tells_of_the_queue_is_in_the_usage(smollm2, smollm2_reference):
    stream = stream_of(smollm2, ["two"], time.monotonic() - 1.0)
    for token_id in smollm2_reference.encode("one two").ids:
        stream.push(token_id)
    told = RequestUsage(3, 9, 0.25, 0.5, 7.0, preemptions=2, recomputed_tokens=5, cached_tokens=1)
    stream.end(Failure(1, FailureKind.UNAVAILABLE, "too late", usage=told))
    usage = (await stream.next()).usage
    assert (usage.queue_seconds, usage.preemptions, usage.output_tokens) == (0.25, 2, 2)
    assert usage.cached_tokens == 1
    assert 1.0 <= usage.total_seconds < 7.0


@pytest.mark.parametrize("kind", LATE_FAILURES)
async def test_a_failure_before_a_stop_string_is_complete_ends_the_call(
    smollm2, smollm2_reference, kind
):
    stream = stream_of(smollm2, ["two three"])
    for token_id in smollm2_reference.encode("one two").ids:
        assert not stream.push(token_id)
    stream.end(Failure(1, kind, "why"))
    with pytest.raises(CallError, match="why"):
        await stream.next()


async def test_the_first_end_counts_and_no_token_comes_after_it():
    stream = stream_of()
    stream.push(8)
    finish = Finish(FinishReason.LENGTH, None, RequestUsage(3, 1, 0.25, 0.5, 0.75, 0))
    stream.end(Finished(1, finish))
    stream.end(Failure(1, FailureKind.INTERNAL, "too late"))
    assert not stream.push(9)
    response = await stream.next()
    assert list(response.token_ids) == [8]
    assert response.finish_reason == inference_pb2.FINISH_REASON_LENGTH
    assert response.usage.output_tokens == 1


async def test_tokens_that_come_between_two_reads_are_joined():
    """The stream's own coalescing, without a transport that buffers megabytes."""
    stream = stream_of()
    for token_id in (5, 6, 7):
        stream.push(token_id)
    assert list((await stream.next()).token_ids) == [5, 6, 7]
    waiting = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.push(8)
    assert list((await waiting).token_ids) == [8]


def token_logprobs(token_id: int, top: int) -> tuple[bytes, bytes]:
    """Of which each takes as many bytes of a message as it can."""
    ids = np.array([token_id, *[2**31 - 1] * top], np.int32)
    return ids.tobytes(), np.full(1 + top, -token_id - 0.5, np.float32).tobytes()


@pytest.mark.parametrize(("top", "count"), [(1, 50_000), (20, 9_000)])
async def test_a_reader_that_comes_late_gets_its_log_probabilities_in_messages_of_bounded_size(
    smollm2, top, count
):
    """The text is not ahead of its tokens."""
    stream = stream_of(smollm2, top_logprobs=top)
    for token_id in range(count):
        stream.push(2**30 + token_id, token_logprobs(2**30 + token_id, top))
    stream.end(Finished(1, Finish(FinishReason.LENGTH, None, RequestUsage(3, count, 0, 0, 0, 0))))
    responses = [await stream.next()]
    while not responses[-1].finish_reason:
        responses.append(await stream.next())
    assert len(responses) > 1
    assert max(response.ByteSize() for response in responses) <= LONGEST
    assert min(response.ByteSize() for response in responses[:-1]) > 0.9 * LONGEST
    entries = joined_logprobs(responses)
    assert [ids[0] for ids, _ in entries] == list(range(2**30, 2**30 + count))
    assert all(ids[1:] == [2**31 - 1] * top for ids, _ in entries)
    assert entries[-1][1][0] == np.float32(-(2**30) - count)
    assert not any(response.text for response in responses[:-1])


async def test_what_waits_for_a_slow_reader_takes_eight_bytes_a_log_probability():
    stream = stream_of(top_logprobs=20)
    for token_id in range(1000):
        stream.push(token_id, token_logprobs(token_id, 20))
    assert stream._logprobs is not None
    assert len(stream._logprobs._ids) + len(stream._logprobs._values) == 1000 * 21 * 8
    await stream.next()
    assert not stream._logprobs._ids
    assert not stream._logprobs._values


async def test_log_probabilities_of_tokens_after_a_stop_string_or_the_end_are_dropped(
    smollm2, smollm2_reference
):
    stream = stream_of(smollm2, ["two"], top_logprobs=1)
    ids = smollm2_reference.encode("one two three").ids
    for token_id in ids:
        stream.push(token_id, token_logprobs(token_id, 1))
    stream.end(Finished(1, Finish(FinishReason.STOP, None, RequestUsage(3, 2, 0, 0, 0, 0))))
    stream.push(5, token_logprobs(5, 1))
    assert [ids[0] for ids, _ in joined_logprobs([await stream.next()])] == ids[:2]
