"""Nobody waits for a client that reads slowly, or for one whose prompt is huge."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest

from nanoserve.v1 import inference_pb2
from nanoserve.v1.inference_pb2 import GenerateRequest, TokenIds
from scheduler.api.output_stream import LONGEST_TEXT
from tests.scheduler.api import small_tokenizers
from tests.scheduler.api.calls import joined
from tests.scheduler.api.scripted_engine import LIMITS, ScriptedEngine
from tests.waiting import SECONDS, until

LENGTH = inference_pb2.FINISH_REASON_LENGTH


async def test_a_slow_reader_gets_every_token_in_few_messages_and_delays_nobody(
    serve, make_tokenizer
):
    """A token's text is 20 KB, so that 1000 of them are far more than the transport takes
    before a write has to wait."""
    reference = small_tokenizers.byte_level()
    long = "x" * 20_000
    reference.add_tokens([long])
    script = [reference.token_to_id(long)] * 1000
    engine = ScriptedEngine(lambda s: script if s.request_id == "slow" else script[:20])
    served = await serve(engine, tokenizer=make_tokenizer(reference))
    channel = grpc.aio.insecure_channel(served.server.address)
    generate = channel.unary_stream(
        "/nanoserve.v1.InferenceService/Generate",
        request_serializer=GenerateRequest.SerializeToString,
        response_deserializer=inference_pb2.GenerateResponse.FromString,
    )
    call = aiter(generate(GenerateRequest(text="x", request_id="slow")))
    responses = [await anext(call)]
    await until(lambda: engine.submissions and not engine.running)
    for _ in range(3):
        assert joined(await served.generate(text="x"))[1] == script[:20]
    responses += [response async for response in call]
    text, ids = joined(responses)
    assert ids == script
    assert text == long * 1000
    assert responses[-1].finish_reason == LENGTH
    assert len(responses) < 900
    assert max(len(response.text) for response in responses) == LONGEST_TEXT
    await channel.close()


async def test_a_reader_that_stops_reading_is_ended_by_the_servers_maximum(serve, make_tokenizer):
    reference = small_tokenizers.byte_level()
    long = "x" * 20_000
    reference.add_tokens([long])
    engine = ScriptedEngine([reference.token_to_id(long)] * 1000)
    served = await serve(engine, tokenizer=make_tokenizer(reference), max_request_seconds=2)
    request = GenerateRequest(token_ids=TokenIds(ids=[1]))
    responses = aiter(served.stub.Generate(request))  # which asks for none until it is iterated
    await until(lambda: engine.submissions and not engine.running)
    await until(lambda: not served.server._service._streams)
    assert len(await served.generate(text="x", max_tokens=3)) <= 3
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        _ = [response async for response in responses]
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "the server's maximum of 2 seconds passed" in raised.value.details()


async def test_streams_and_health_go_on_while_megabytes_are_encoded(serve):
    """Times are of this process on a CPU, where the encoding takes it all: what a busy machine
    does meanwhile is in none of them."""
    limits = replace(LIMITS, max_model_len=2_000_000, usable_blocks=200_000)
    engine = ScriptedEngine([5] * 50_000, step_seconds=0.005, limits=limits)
    served = await serve(engine)
    stream = served.stub.Generate(GenerateRequest(text="x"))
    await stream.read()
    begin = time.process_time()
    big = asyncio.ensure_future(served.generate(text="the quick brown fox " * 250_000))
    seconds: list[float] = []
    num_tokens: list[int] = []

    async def check_health() -> None:
        while len(engine.submissions) < 2:
            asked = time.process_time()
            await served.health.Check(HealthCheckRequest(), timeout=SECONDS)
            seconds.append(time.process_time() - asked)
            await asyncio.sleep(0.01)

    async def read() -> None:
        while len(engine.submissions) < 2:
            num_tokens.append(len((await stream.read()).token_ids))

    await asyncio.gather(check_health(), read())
    whole = time.process_time() - begin
    assert len(engine.submissions[1].prompt_ids) > 1_000_000
    assert len(seconds) > 20
    assert statistics.median(seconds) < whole / 20
    assert max(seconds) < whole / 2
    assert sum(num_tokens) > 50
    assert len(num_tokens) > 20
    big.cancel()
    stream.cancel()
