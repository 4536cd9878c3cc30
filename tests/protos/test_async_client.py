"""The asyncio client against a scripted server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2

from nanoserve import (
    AsyncClient,
    Chunk,
    DeadlineExceededError,
    FieldViolation,
    FinishReason,
    InvalidRequestError,
    NanoserveError,
    TokenLogprobs,
    TopLogprob,
    UnavailableError,
)
from nanoserve.v1 import inference_pb2 as pb
from nanoserve.v1 import inference_pb2_grpc as pb_grpc
from tests.protos.scripted_server import ScriptedServer, fail, say
from tests.waiting import SECONDS, until


async def cancelled(server: ScriptedServer) -> bool:
    return await asyncio.to_thread(server.cancelled.wait, SECONDS)


async def test_chunks_come_in_order(server: ScriptedServer) -> None:
    async with AsyncClient(server.address) as client:
        chunks = [chunk async for chunk in client.generate("Hi", request_id="a")]
    assert chunks[:2] == [Chunk("a", "Hello", (1,)), Chunk("a", " world", (2,))]
    assert chunks[2].finish_reason is FinishReason.STOP
    assert len(chunks) == 3


async def test_log_probabilities_come_with_their_tokens(server: ScriptedServer) -> None:
    one = pb.TokenLogprobs(logprob=-0.5, top=[pb.TopLogprob(token_id=3, logprob=-0.25)])
    piece = pb.GenerateResponse(
        token_ids=[5], logprobs=[one], finish_reason=pb.FINISH_REASON_LENGTH
    )
    server.handler = lambda _request, _context: iter([piece])
    async with AsyncClient(server.address) as client:
        completion = await client.generate("Hi", top_logprobs=1, repetition_penalty=2.0).collect()
    assert completion.logprobs == (TokenLogprobs(-0.5, (TopLogprob(3, -0.25),)),)
    assert (server.requests[0].top_logprobs, server.requests[0].repetition_penalty) == (1, 2.0)


async def test_many_generations_run_at_once(server: ScriptedServer) -> None:
    async with AsyncClient(server.address) as client:
        done = await asyncio.gather(*(client.generate(f"{i}").collect() for i in range(6)))
    assert [completion.text for completion in done] == ["Hello world"] * 6


async def test_an_error_keeps_its_details(server: ScriptedServer) -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="seed", description="too low")
    server.handler = fail(
        grpc.StatusCode.INVALID_ARGUMENT,
        "seed: too low",
        error_details_pb2.BadRequest(field_violations=[violation]),
    )
    async with AsyncClient(server.address) as client:
        with pytest.raises(InvalidRequestError, match="INVALID_ARGUMENT: seed: too low") as caught:
            await client.generate("Hi").collect()
    assert caught.value.violations == (FieldViolation("seed", "too low"),)


async def test_closing_a_generation_cancels_it_on_the_server(server: ScriptedServer) -> None:
    server.handler = server.hold
    async with AsyncClient(server.address) as client:
        generation = client.generate("Hi")
        assert (await anext(generation)).text == "Hel"
        generation.close()
        assert [chunk async for chunk in generation] == []
        assert await cancelled(server)
        server.handler = say("next")
        assert (await client.generate("Hi").collect()).text == "next"


async def test_closing_ends_an_iteration_that_waits(server: ScriptedServer) -> None:
    server.handler = server.hold
    async with AsyncClient(server.address) as client:
        generation = client.generate("Hi")
        waiting = asyncio.create_task(generation.collect())
        await until(lambda: server.requests)
        generation.close()
        assert (await waiting).finish_reason is None
        assert await cancelled(server)


async def test_cancelling_the_task_cancels_on_the_server(server: ScriptedServer) -> None:
    server.handler = server.hold
    async with AsyncClient(server.address) as client:
        waiting = asyncio.create_task(client.generate("Hi").collect())
        await until(lambda: server.requests)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await cancelled(server)


async def test_dropping_a_generation_cancels_it_on_the_server(server: ScriptedServer) -> None:
    server.handler = server.hold
    async with AsyncClient(server.address) as client:
        async for chunk in client.generate("Hi"):
            assert chunk.text == "Hel"
            break
        assert await cancelled(server)


async def test_the_timeout_is_the_calls_deadline(server: ScriptedServer) -> None:
    server.handler = server.hold
    async with AsyncClient(server.address) as client:
        with pytest.raises(DeadlineExceededError):
            await client.generate("Hi", timeout=0.3).collect()


async def test_status_and_its_failure(server: ScriptedServer, nobody: str) -> None:
    async with AsyncClient(server.address) as client:
        assert (await client.status()).model == "tiny"
    async with AsyncClient(nobody) as client:
        with pytest.raises(UnavailableError):
            await client.status()


class Busy(pb_grpc.InferenceServiceServicer):
    async def Generate(
        self, _request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is draining")


async def test_calls_that_a_server_had_not_taken_when_it_stopped_are_unavailable(
    tmp_path: Path,
) -> None:
    """gRPC's library ends them CANCELLED, by itself."""
    messages: list[str] = []
    while not any("stopped before it took" in message for message in messages):
        seen = await errors_of_a_server_that_stops(f"unix:{tmp_path}/{len(messages)}")
        assert {error.code for error in seen} == {grpc.StatusCode.UNAVAILABLE}
        assert {type(error) for error in seen} == {UnavailableError}
        messages += [error.message for error in seen]


async def errors_of_a_server_that_stops(address: str) -> list[NanoserveError]:
    """What its clients get, some of whose calls it has probably not taken by then."""
    server = grpc.aio.server()
    pb_grpc.add_InferenceServiceServicer_to_server(Busy(), server)
    server.add_insecure_port(address)
    await server.start()
    seen: list[NanoserveError] = []

    async def ask_again_and_again() -> None:
        async with AsyncClient(address) as client:
            while not (seen and seen[-1].unreachable):
                try:
                    await client.generate("Hi").collect()
                except NanoserveError as error:
                    seen.append(error)

    clients = [asyncio.create_task(ask_again_and_again()) for _ in range(24)]
    while len(seen) < 48:
        await asyncio.sleep(0.01)
    await server.stop(0.2)
    await asyncio.gather(*clients)
    return seen
