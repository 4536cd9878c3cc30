"""A fault of the front end ends its own call; a full queue is refused early."""

from __future__ import annotations

import asyncio

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2

from nanoserve.v1 import inference_pb2
from nanoserve.v1.inference_pb2 import Chat, ChatMessage, TokenIds
from scheduler.core.front_end import Abort, EventBatch, Failure, FailureKind, FinishReason
from tests.scheduler.api.calls import joined
from tests.scheduler.api.scripted_engine import LIMITS, ScriptedEngine
from tests.waiting import until

STOP = inference_pb2.FINISH_REASON_STOP


async def test_a_fault_before_the_engine_ends_its_own_call_only(serve, smollm2, monkeypatch):
    served = await serve(ScriptedEngine([2]))
    monkeypatch.setattr(smollm2, "encode_text", lambda text: 1 / 0)
    error = await served.error(text="x")
    assert error.code() == grpc.StatusCode.INTERNAL
    monkeypatch.undo()
    assert (await served.generate(text="x"))[-1].finish_reason == STOP


class Broken:
    """A detokenizer that fails at one of its methods."""

    def __init__(self, at: str) -> None:
        self._at = at

    def push(self, _: int) -> str:
        return self._fail_at("push")

    def finish(self) -> str:
        return self._fail_at("finish")

    def _fail_at(self, method: str) -> str:
        if method == self._at:
            raise RuntimeError("a fault in the detokenizer")
        return ""


@pytest.mark.parametrize("at", ["push", "finish"])
async def test_a_fault_in_one_calls_text_loses_no_token_of_the_others(
    serve, smollm2, monkeypatch, caplog, at
):
    """All tokens and ends of both calls come in one batch, the broken call's first."""
    real = smollm2.detokenizer
    monkeypatch.setattr(
        smollm2,
        "detokenizer",
        lambda prompt, special: Broken(at) if prompt[0] == 7 else real(prompt, special),
    )
    engine = ScriptedEngine([5, 6, 2], tokens_per_turn=3)
    served = await serve(engine)
    engine.freeze()
    broken = asyncio.ensure_future(served.error(token_ids=TokenIds(ids=[7]), request_id="bad"))
    await until(lambda: len(engine.submissions) == 1)
    whole = asyncio.ensure_future(served.generate(token_ids=TokenIds(ids=[8])))
    await until(lambda: len(engine.submissions) == 2)
    engine.thaw()
    assert joined(await whole)[1] == [5, 6, 2]
    error = await broken
    assert error.code() == grpc.StatusCode.INTERNAL
    assert error.details() == "internal error; see the server's log"
    assert engine.aborts == [Abort(engine.submissions[0].handle, FailureKind.INTERNAL)]
    assert "request 'bad' failed in the front end" in caplog.text
    assert "a fault in the detokenizer" in caplog.text
    assert (await served.generate(token_ids=TokenIds(ids=[8])))[-1].finish_reason == STOP


async def test_a_call_whose_text_cannot_begin_is_taken_back_from_the_engine(
    serve, smollm2, monkeypatch
):
    """The engine has it by then."""

    def fail(*_: object) -> None:
        raise RuntimeError("a fault in the tokenizer")

    monkeypatch.setattr(smollm2, "detokenizer", fail)
    engine = ScriptedEngine([5, 2])
    served = await serve(engine)
    engine.freeze()
    error = await served.error(token_ids=TokenIds(ids=[7]))
    assert error.code() == grpc.StatusCode.INTERNAL
    (submission,) = engine.submissions
    assert [abort.handle for abort in engine.aborts] == [submission.handle]
    monkeypatch.undo()
    engine.thaw()
    assert (await served.generate(token_ids=TokenIds(ids=[8])))[-1].finish_reason == STOP


async def test_a_failure_in_the_batch_of_a_matched_stop_string_comes_too_late(
    serve, smollm2_reference
):
    engine = ScriptedEngine([2])
    served = await serve(engine)
    engine.freeze()
    call = asyncio.ensure_future(served.generate(text="x", stop=["two"]))
    await until(lambda: engine.submissions)
    ids = smollm2_reference.encode("one two").ids
    handle = engine.submissions[0].handle
    late = Failure(handle, FailureKind.UNAVAILABLE, "the worker stayed away")
    served.server.deliver(EventBatch(np.full(2, handle, np.int64), np.array(ids, np.int32), [late]))
    responses = await call
    assert joined(responses) == ("one ", ids)
    assert (responses[-1].finish_reason, responses[-1].matched_stop) == (STOP, "two")
    assert responses[-1].usage.output_tokens == 2
    assert engine.aborts == [Abort(handle, FinishReason.STOP, 2)]


PROMPTS = [
    {"text": "x"},
    {"chat": Chat(messages=[ChatMessage(role="user", content="x")])},
    {"token_ids": TokenIds(ids=[1])},
]


@pytest.mark.parametrize("prompt", PROMPTS, ids=["text", "chat", "token_ids"])
async def test_a_full_queue_is_refused_before_the_prompt_is_encoded(
    serve, smollm2, monkeypatch, prompt
):
    """The scripted engine says that one request waits: 64 rows and a queue of 1 are full
    with 64 running."""
    engine = ScriptedEngine([5] * 5000, step_seconds=0.005)
    served = await serve(engine, max_queue=1)
    running = [asyncio.ensure_future(served.generate(text="x")) for _ in range(LIMITS.max_rows)]
    await until(lambda: len(engine.running) == LIMITS.max_rows)
    monkeypatch.setattr(smollm2, "encode_text", lambda text: 1 / 0)
    monkeypatch.setattr(smollm2, "encode_chat", lambda messages: 1 / 0)
    error = await served.error(**prompt)
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == (
        "65 requests are running, waiting or being encoded, and the limit is 65 (64 rows and a "
        "queue of 1); try again later"
    )
    metadata = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    retry = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(retry)
    assert retry.retry_delay.seconds == 1
    assert len(engine.submissions) == LIMITS.max_rows
    for call in running:
        call.cancel()


async def test_prompts_that_are_being_encoded_count_for_the_queue(serve, smollm2, monkeypatch):
    """One request waits, says the scripted engine; of the others 64 have room."""
    served = await serve(ScriptedEngine([2]), max_queue=1)
    encoding = asyncio.Event()

    async def slowly(*_: object) -> tuple[int, ...]:
        await encoding.wait()
        return (1,)

    monkeypatch.setattr(served.server._service._encoder, "encode", slowly)
    calls = [asyncio.ensure_future(served.generate(text="x")) for _ in range(LIMITS.max_rows)]
    await until(lambda: served.server._service._num_encoding == LIMITS.max_rows)
    assert (await served.error(text="x")).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    encoding.set()
    for responses in await asyncio.gather(*calls):
        assert responses[-1].finish_reason == STOP
    assert (await served.generate(text="x"))[-1].finish_reason == STOP
