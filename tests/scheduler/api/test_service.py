"""Calls end as inference.proto says, whatever engine, client and reader do."""

from __future__ import annotations

import asyncio
import time

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2

from nanoserve.v1 import inference_pb2
from nanoserve.v1.inference_pb2 import (
    Chat,
    ChatMessage,
    GenerateRequest,
    GetStatusRequest,
    TokenIds,
)
from scheduler.core.front_end import (
    Abort,
    EventBatch,
    Failure,
    FailureKind,
    FinishReason,
    Submission,
)
from scheduler.core.penalties import NO_PENALTIES, Penalties
from tests.scheduler.api.calls import joined, joined_logprobs
from tests.scheduler.api.scripted_engine import ScriptedEngine, scripted_logprobs
from tests.waiting import SECONDS, until

STOP = inference_pb2.FINISH_REASON_STOP
LENGTH = inference_pb2.FINISH_REASON_LENGTH


@pytest.fixture
def ids_of(smollm2_reference):
    return lambda text: smollm2_reference.encode(text).ids


async def test_text_streams_and_the_last_message_tells_all(serve, ids_of):
    served = await serve(ScriptedEngine([*ids_of(" Paris is nice"), 2]))
    responses = await served.generate(text="The capital of France is", request_id="r1")
    text, ids = joined(responses)
    assert text == " Paris is nice"
    assert ids == [*ids_of(" Paris is nice"), 2]
    assert {response.request_id for response in responses} == {"r1"}
    assert [response.finish_reason for response in responses[:-1]] == [0] * (len(responses) - 1)
    last = responses[-1]
    assert last.finish_reason == STOP
    assert last.WhichOneof("matched") == "matched_token_id"
    assert last.matched_token_id == 2
    usage = last.usage
    assert (usage.prompt_tokens, usage.output_tokens, usage.preemptions) == (5, 4, 1)
    assert usage.cached_tokens == 2
    assert (usage.queue_seconds, usage.first_token_seconds, usage.total_seconds) == (
        0.25,
        0.5,
        0.75,
    )


async def test_the_engine_gets_what_the_request_says(serve):
    engine = ScriptedEngine([2])
    served = await serve(engine)
    begin = time.monotonic()
    await served.generate(
        timeout=600,
        token_ids=TokenIds(ids=[7, 49151]),
        max_tokens=3,
        temperature=0.5,
        seed=9,
        stop_token_ids=[11],
        request_id="mine",
        repetition_penalty=1.5,
        frequency_penalty=-0.5,
        presence_penalty=2.0,
        top_logprobs=0,
    )
    await served.generate(token_ids=TokenIds(ids=[7]), ignore_eos=True, stop_token_ids=[2])
    await served.generate(token_ids=TokenIds(ids=[7]), ignore_eos=True)
    first, second, third = engine.submissions
    assert first.prompt_ids.tolist() == [7, 49151]
    assert (first.max_tokens, first.temperature, first.seed) == (3, 0.5, 9)
    assert (first.request_id, first.stop_ids) == ("mine", {2, 11})
    assert begin <= first.arrival <= time.monotonic()
    assert 500 < first.deadline - first.arrival < 601
    assert (second.stop_ids, third.stop_ids) == ({2}, frozenset())
    assert (first.penalties, first.top_logprobs) == (Penalties(1.5, -0.5, 2.0), 0)
    assert (second.max_tokens, second.seed, second.temperature) == (None, None, 1.0)
    assert (second.penalties, second.top_logprobs) == (NO_PENALTIES, None)
    assert len({first.handle, second.handle, third.handle}) == 3
    assert second.request_id != third.request_id


async def test_without_a_seed_the_engine_is_left_to_draw_one_and_0_is_a_seed(serve):
    engine = ScriptedEngine([2])
    served = await serve(engine)
    for fields in ({}, {}, {"seed": 0}, {"seed": 7}, {"seed": 7}):
        await served.generate(token_ids=TokenIds(ids=[7]), temperature=0.8, **fields)
    assert [submission.seed for submission in engine.submissions] == [None, None, 0, 7, 7]


async def test_a_chat_is_put_through_the_template(serve, smollm2):
    engine = ScriptedEngine([2])
    served = await serve(engine)
    await served.generate(chat=Chat(messages=[ChatMessage(role="user", content="Say hi.")]))
    expected = smollm2.encode_chat([{"role": "user", "content": "Say hi."}])
    assert engine.submissions[0].prompt_ids.tolist() == expected
    assert len(expected) == 33


@pytest.mark.parametrize(("shown", "text"), [(False, "a"), (True, "a<|im_end|>")])
async def test_the_end_tokens_text_is_sent_only_if_asked(serve, ids_of, shown, text):
    served = await serve(ScriptedEngine([*ids_of("a"), 2]))
    assert joined(await served.generate(text="x", include_special_tokens=shown))[0] == text


async def test_length_is_a_reason_and_matches_nothing(serve, ids_of):
    served = await serve(ScriptedEngine(ids_of("one two three four")))
    responses = await served.generate(text="x", max_tokens=2)
    assert joined(responses) == ("one two", ids_of("one two"))
    assert responses[-1].finish_reason == LENGTH
    assert responses[-1].WhichOneof("matched") is None
    assert responses[-1].usage.output_tokens == 2


@pytest.mark.parametrize("tokens_per_turn", [1, 4])
async def test_a_stop_string_ends_the_request_at_its_token(serve, ids_of, tokens_per_turn):
    engine = ScriptedEngine(ids_of("one two three four" + " and so on" * 300))
    engine.tokens_per_turn = tokens_per_turn
    served = await serve(engine)
    responses = await served.generate(text="x", stop=[" thr"])
    assert joined(responses) == ("one two", ids_of("one two three"))
    last = responses[-1]
    assert (last.finish_reason, last.matched_stop) == (STOP, " thr")
    assert last.usage.output_tokens == 3
    handle = engine.submissions[0].handle
    assert engine.aborts == [Abort(handle, FinishReason.STOP, 3)]


async def test_a_stop_string_at_an_earlier_token_beats_the_engines_end(serve, ids_of):
    """All four tokens come in one batch, with the engine's verdict."""
    served = await serve(ScriptedEngine(ids_of("one two three four"), tokens_per_turn=4))
    responses = await served.generate(text="x", stop=["two"], max_tokens=4)
    assert joined(responses) == ("one ", ids_of("one two"))
    assert (responses[-1].finish_reason, responses[-1].matched_stop) == (STOP, "two")
    assert responses[-1].usage.output_tokens == 2


async def test_a_stop_string_beats_length_at_the_same_token(serve, ids_of):
    served = await serve(ScriptedEngine(ids_of("one two three four")))
    responses = await served.generate(text="x", stop=["two"], max_tokens=2)
    assert joined(responses)[0] == "one "
    assert (responses[-1].finish_reason, responses[-1].matched_stop) == (STOP, "two")


async def test_a_stop_token_beats_a_stop_string_at_the_same_token(serve, ids_of):
    served = await serve(ScriptedEngine([*ids_of("one"), 2]))
    responses = await served.generate(text="x", stop=["<|im_end|>"], include_special_tokens=True)
    assert joined(responses)[0] == "one"
    assert (responses[-1].finish_reason, responses[-1].matched_token_id) == (STOP, 2)


async def test_a_stop_string_names_a_special_token_that_is_hidden(serve, ids_of):
    served = await serve(ScriptedEngine([*ids_of("one"), 2, *ids_of(" two" * 500)]))
    responses = await served.generate(text="x", stop=["<|im_end|>"], ignore_eos=True)
    assert joined(responses) == ("one", [*ids_of("one"), 2])
    assert responses[-1].matched_stop == "<|im_end|>"


async def test_many_streams_at_once_get_their_own_text(serve, smollm2, smollm2_reference):
    def script(submission: Submission) -> list[int]:
        return [(submission.prompt_ids[0] * 31 + i * 17) % 49000 + 20 for i in range(40)]

    served = await serve(ScriptedEngine(script, tokens_per_turn=3))

    async def one(first: int) -> None:
        responses = await served.generate(token_ids=TokenIds(ids=[first]))
        submission = next(s for s in served.engine.submissions if s.prompt_ids[0] == first)
        text, ids = joined(responses)
        assert ids == script(submission)
        assert text == smollm2_reference.decode(ids)
        assert not any("\ufffd" in r.text for r in responses) or "\ufffd" in text

    await asyncio.gather(*map(one, range(64)))


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (FailureKind.INVALID, "INVALID_ARGUMENT"),
        (FailureKind.DUPLICATE_ID, "ALREADY_EXISTS"),
        (FailureKind.QUEUE_FULL, "RESOURCE_EXHAUSTED"),
        (FailureKind.NO_ROOM, "RESOURCE_EXHAUSTED"),
        (FailureKind.DEADLINE, "DEADLINE_EXCEEDED"),
        (FailureKind.CANCELLED, "CANCELLED"),
        (FailureKind.UNAVAILABLE, "UNAVAILABLE"),
        (FailureKind.INTERNAL, "INTERNAL"),
    ],
)
async def test_each_kind_of_failure_is_a_status(serve, kind, code):
    failure = Failure(0, kind, "why: 1 > 0", "max_tokens" if code == "INVALID_ARGUMENT" else "")
    served = await serve(ScriptedEngine([2], failures={"bad": failure}))
    error = await served.error(text="x", request_id="bad")
    assert error.code().name == code
    assert error.details() == "why: 1 > 0"
    assert served.engine.aborts == []
    assert (await served.generate(text="x"))[-1].finish_reason == STOP


async def test_a_full_queue_says_when_to_come_back(serve):
    failure = Failure(0, FailureKind.QUEUE_FULL, "full", retry_after=2.0)
    served = await serve(ScriptedEngine([2], failures={"bad": failure}))
    error = await served.error(text="x", request_id="bad")
    metadata = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    retry = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(retry)
    assert retry.retry_delay.seconds == 2


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "prompt"),
        ({"text": ""}, "text"),
        ({"text": "x", "temperature": float("nan")}, "temperature"),
        ({"token_ids": TokenIds(ids=[2**63 - 1])}, "token_ids.ids"),
        ({"text": "x", "max_tokens": 0}, "max_tokens"),
        ({"text": "x", "repetition_penalty": -1.0}, "repetition_penalty"),
        ({"text": "x", "frequency_penalty": 2.5}, "frequency_penalty"),
        ({"text": "x", "presence_penalty": float("inf")}, "presence_penalty"),
        ({"text": "x", "top_logprobs": 10**6}, "top_logprobs"),
        ({"chat": Chat()}, "chat.messages"),
        ({"text": "x" * 5_000_000}, "text"),
    ],
)
async def test_a_refused_request_starts_nothing_and_the_next_is_served(serve, fields, field):
    served = await serve(ScriptedEngine([2]))
    error = await served.error(**fields)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    metadata = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    bad = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(bad)
    assert bad.field_violations[0].field == field
    assert served.engine.log == []
    assert (await served.generate(text="x"))[-1].finish_reason == STOP


@pytest.mark.parametrize("top", [0, 3])
@pytest.mark.parametrize("tokens_per_turn", [1, 4])
async def test_each_token_comes_with_its_log_probabilities(serve, top, tokens_per_turn):
    """While another request, which asks for none, is in the same batches."""
    script = [*range(100, 120), 2]
    engine = ScriptedEngine(script, tokens_per_turn=tokens_per_turn)
    served = await serve(engine)
    asked, plain = await asyncio.gather(
        served.generate(text="x", top_logprobs=top), served.generate(text="y")
    )
    right = [scripted_logprobs(place, token, top) for place, token in enumerate(script)]
    assert joined_logprobs(asked) == right
    assert joined(plain)[1] == script
    assert not any(response.logprobs for response in plain)


async def test_a_stop_string_ends_tokens_and_log_probabilities_at_the_same_place(serve, ids_of):
    """Text that is held back, or cut away, shifts neither."""
    script = [*ids_of("one two three four"), 2]
    served = await serve(ScriptedEngine(script, tokens_per_turn=3))
    responses = await served.generate(text="x", stop=["three", "two twice"], top_logprobs=1)
    assert joined(responses) == ("one two ", script[:3])
    right = [scripted_logprobs(place, token, 1) for place, token in enumerate(script[:3])]
    assert joined_logprobs(responses) == right
    assert responses[-1].usage.output_tokens == 3


async def test_a_token_without_the_log_probabilities_asked_for_fails_its_call_alone(serve):
    engine = ScriptedEngine([5, 6, 2])
    served = await serve(engine)
    engine.freeze()
    call = asyncio.ensure_future(served.error(text="x", top_logprobs=2))
    await until(lambda: engine.submissions)
    handle = np.array([engine.submissions[0].handle])
    served.server.deliver(EventBatch(handle, np.array([5], np.int32)))
    error = await call
    assert error.code() == grpc.StatusCode.INTERNAL
    engine.thaw()
    assert joined(await served.generate(text="x"))[1] == [5, 6, 2]


async def test_a_long_error_in_any_script_reaches_the_client(serve):
    served = await serve(ScriptedEngine([2]))
    error = await served.error(text="x", request_id="🌶" * 5000)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    failure = Failure(0, FailureKind.INVALID, "🌶" * 5000, "text")
    served.engine.failures["bad"] = failure
    error = await served.error(text="x", request_id="bad")
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith("🌶🌶🌶")


async def test_a_cancelled_call_is_aborted(serve):
    engine = ScriptedEngine([5] * 5000, step_seconds=0.002)
    served = await serve(engine)
    call = served.stub.Generate(GenerateRequest(text="x"))
    await call.read()
    call.cancel()
    await until(lambda: not engine.running)
    assert engine.aborts == [Abort(engine.submissions[0].handle, FailureKind.CANCELLED)]


async def test_a_call_whose_client_disconnects_is_aborted(serve):
    engine = ScriptedEngine([5] * 5000, step_seconds=0.002)
    served = await serve(engine)
    channel = grpc.aio.insecure_channel(served.server.address)
    generate = channel.unary_stream(
        "/nanoserve.v1.InferenceService/Generate",
        request_serializer=GenerateRequest.SerializeToString,
    )
    call = generate(GenerateRequest(text="x"))
    await call.read()
    await channel.close()
    await until(lambda: not engine.running)
    assert [abort.reason for abort in engine.aborts] == [FailureKind.CANCELLED]


async def test_a_passed_deadline_ends_the_call_and_the_request(serve):
    engine = ScriptedEngine([5] * 5000, step_seconds=0.002)
    served = await serve(engine)
    timeout = 0.3
    while not engine.submissions:  # one that expires on its way is nobody's here
        error = await served.error(timeout=timeout, text="x")
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        timeout *= 2
    await until(lambda: len(engine.aborts) == len(engine.submissions) and not engine.running)
    assert [a.handle for a in engine.aborts] == [s.handle for s in engine.submissions]
    reasons = {abort.reason for abort in engine.aborts}
    assert reasons <= {FailureKind.DEADLINE, FailureKind.CANCELLED}


async def test_a_call_without_a_deadline_has_the_servers_maximum(serve):
    engine = ScriptedEngine([5] * 5000, step_seconds=0.002)
    served = await serve(engine, max_request_seconds=0.3)
    # Nothing is waited for before the engine has it, so that it cannot expire before.
    call = served.stub.Generate(GenerateRequest(token_ids=TokenIds(ids=[1])))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        _ = [response async for response in call]
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "maximum of 0.3 seconds" in raised.value.details()
    await until(lambda: not engine.running)
    assert [abort.reason for abort in engine.aborts] == [FailureKind.DEADLINE]


async def test_a_call_that_expired_on_arrival_is_never_submitted(serve):
    """The context is a stand-in, since no client sends a call that has expired."""
    served = await serve(ScriptedEngine([2]))

    class Expired:
        status: tuple[grpc.StatusCode, str] | None = None

        def time_remaining(self) -> float:
            return 0.0

        def invocation_metadata(self) -> tuple[()]:
            return ()

        async def abort(self, code, message, trailing_metadata) -> None:
            self.status = (code, message)

    context = Expired()
    await served.server._service.Generate(GenerateRequest(text="x"), context)
    assert context.status == (grpc.StatusCode.DEADLINE_EXCEEDED, "the call's deadline passed")
    assert served.engine.log == []


async def test_before_the_first_worker_calls_are_unavailable_with_the_reason(serve):
    served = await serve(ScriptedEngine([2], limits=None))
    error = await served.error(text="x")
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert error.details() == "the server is not ready: no worker has connected yet"
    status = await served.stub.GetStatus(GetStatusRequest())
    assert (status.ready, status.reason) == (False, "no worker has connected yet")
    assert status.max_model_len == 0


async def test_status_tells_what_is_served_and_how_loaded_it_is(serve):
    served = await serve(ScriptedEngine([2]))
    status = await served.stub.GetStatus(GetStatusRequest())
    assert 0 < status.uptime_seconds < SECONDS
    status.ClearField("uptime_seconds")
    assert status == inference_pb2.GetStatusResponse(
        ready=True,
        model="tiny",
        max_model_len=8192,
        vocab_size=49152,
        max_rows=64,
        block_size=16,
        usable_blocks=2048,
        waiting_requests=1,
        free_blocks=2,
        steps_in_flight=3,
        steps=4,
        prompt_tokens=5,
        output_tokens=6,
        discarded_tokens=8,
        preemptions=9,
        worker_incarnation=7,
        worker_device="simulated",
        recomputed_tokens=10,
        worker_restarts=11,
        cached_blocks=1,
        prefix_queries=12,
        prefix_hits=7,
    )


async def test_without_a_tokenizer_ids_are_served_and_text_is_refused(serve):
    served = await serve(ScriptedEngine([5, 6, 2]), tokenizer=None)
    responses = await served.generate(token_ids=TokenIds(ids=[1]))
    assert joined(responses) == ("", [5, 6, 2])
    assert responses[-1].matched_token_id == 2
    for fields in ({"text": "x"}, {"chat": Chat(messages=[ChatMessage(role="u", content="x")])}):
        error = await served.error(**fields)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "no tokenizer; send token_ids" in error.details()
