"""The synchronous client against a scripted server."""

from __future__ import annotations

import dataclasses
import threading
import time

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from nanoserve import (
    Chunk,
    Client,
    Completion,
    DeadlineExceededError,
    DuplicateRequestError,
    FieldViolation,
    FinishReason,
    InvalidRequestError,
    NanoserveError,
    OverloadedError,
    ServerError,
    ServerStatus,
    TokenLogprobs,
    TopLogprob,
    UnavailableError,
    Usage,
)
from nanoserve.v1 import inference_pb2 as pb
from tests.protos.scripted_server import ScriptedServer, fail, say
from tests.waiting import SECONDS, wait_for

USAGE = Usage(
    prompt_tokens=5,
    output_tokens=3,
    queue_seconds=0,
    first_token_seconds=0,
    total_seconds=0.5,
    preemptions=0,
    cached_tokens=4,
)


def test_chunks_come_in_order_and_the_last_tells_how_it_ended(server: ScriptedServer) -> None:
    with Client(server.address) as client:
        chunks = list(client.generate("Hi", request_id="a"))
    assert chunks == [
        Chunk("a", "Hello", (1,)),
        Chunk("a", " world", (2,)),
        Chunk("a", "", (2,), FinishReason.STOP, 2, USAGE),
    ]


def test_collect_joins_the_chunks_that_are_left(server: ScriptedServer) -> None:
    with Client(server.address) as client:
        generation = client.generate("Hi", request_id="a")
        assert next(generation).text == "Hello"
        assert generation.collect() == Completion(
            "a", " world", (2, 2), FinishReason.STOP, 2, USAGE
        )


def test_log_probabilities_come_with_their_tokens(server: ScriptedServer) -> None:
    def message(*tokens: int, **end: object) -> pb.GenerateResponse:
        top = [pb.TopLogprob(token_id=i, logprob=-i / 4) for i in range(2)]
        logprobs = [pb.TokenLogprobs(logprob=-token, top=top) for token in tokens]
        return pb.GenerateResponse(token_ids=tokens, logprobs=logprobs, **end)  # type: ignore[arg-type]

    pieces = [message(5), message(6, 7, finish_reason=pb.FINISH_REASON_LENGTH)]
    server.handler = lambda _request, _context: iter(pieces)
    top = (TopLogprob(0, 0.0), TopLogprob(1, -0.25))
    right = tuple(TokenLogprobs(-token, top) for token in (5, 6, 7))
    with Client(server.address) as client:
        chunks = list(client.generate("Hi", top_logprobs=2))
        assert [chunk.logprobs for chunk in chunks] == [right[:1], right[1:]]
        completion = client.generate("Hi", top_logprobs=2).collect()
    assert (completion.token_ids, completion.logprobs) == ((5, 6, 7), right)
    assert [request.top_logprobs for request in server.requests] == [2, 2]


def test_the_stop_string_that_ended_an_output_is_told(server: ScriptedServer) -> None:
    server.handler = say(
        "x", last=pb.GenerateResponse(finish_reason=pb.FINISH_REASON_STOP, matched_stop="\n\n")
    )
    with Client(server.address) as client:
        assert client.generate("Hi").collect().matched == "\n\n"


def test_a_finish_reason_newer_than_the_client_ends_an_output(server: ScriptedServer) -> None:
    server.handler = say("x", last=pb.GenerateResponse(finish_reason=pb.FinishReason.ValueType(99)))
    with Client(server.address) as client:
        assert client.generate("Hi").collect().finish_reason is FinishReason.OTHER


def test_every_request_has_an_id_of_its_own(server: ScriptedServer) -> None:
    with Client(server.address) as client:
        first, second = client.generate("a"), client.generate("b")
        assert first.collect().request_id == first.request_id
        assert second.collect().request_id == second.request_id
    assert first.request_id != second.request_id
    assert {request.request_id for request in server.requests} == {
        first.request_id,
        second.request_id,
    }


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequestError),
        (grpc.StatusCode.ALREADY_EXISTS, DuplicateRequestError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, OverloadedError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceededError),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.INTERNAL, ServerError),
        (grpc.StatusCode.DATA_LOSS, ServerError),
    ],
)
def test_a_status_becomes_an_error_of_its_kind(
    server: ScriptedServer, code: grpc.StatusCode, kind: type[NanoserveError]
) -> None:
    server.handler = fail(code, "seed: -1, must be from 0", after=("Hel",))
    with Client(server.address) as client:
        generation = client.generate("Hi")
        assert next(generation).text == "Hel"
        with pytest.raises(NanoserveError) as caught:
            next(generation)
    assert type(caught.value) is kind
    assert str(caught.value) == f"{code.name}: seed: -1, must be from 0"
    assert (caught.value.violations, caught.value.retry_after) == ((), None)


def test_error_details_name_the_fields_and_the_delay(server: ScriptedServer) -> None:
    server.handler = fail(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "queue full",
        error_details_pb2.RetryInfo(
            retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000)
        ),
        error_details_pb2.DebugInfo(detail="unknown to the client"),
        error_details_pb2.BadRequest(
            field_violations=[
                error_details_pb2.BadRequest.FieldViolation(field="seed", description="too low")
            ]
        ),
    )
    with Client(server.address) as client, pytest.raises(OverloadedError) as caught:
        client.generate("Hi").collect()
    assert caught.value.violations == (FieldViolation("seed", "too low"),)
    assert caught.value.retry_after == 1.5


def test_a_request_too_large_for_the_server_is_invalid_and_not_to_be_tried_again(
    server: ScriptedServer,
) -> None:
    with Client(server.address) as client, pytest.raises(InvalidRequestError) as caught:
        client.generate("a" * (5 << 20), request_id="a").collect()
    assert str(caught.value) == (
        "RESOURCE_EXHAUSTED: the request has 5242888 bytes, and the server reads at most 4194304"
    )


def test_closing_a_generation_cancels_it_on_the_server(server: ScriptedServer) -> None:
    server.handler = server.hold
    with Client(server.address) as client:
        generation = client.generate("Hi")
        assert next(generation).text == "Hel"
        generation.close()
        assert server.cancelled.wait(SECONDS)
        assert list(generation) == []
        server.handler = say("next")
        assert client.generate("Hi").collect().text == "next"


def test_closing_from_another_thread_ends_a_waiting_iteration(server: ScriptedServer) -> None:
    server.handler = server.hold
    with Client(server.address) as client:
        generation = client.generate("Hi")
        next(generation)
        closer = threading.Timer(0.1, generation.close)
        closer.start()
        assert list(generation) == []
        closer.join()
    assert server.cancelled.is_set() or server.cancelled.wait(SECONDS)


def test_dropping_a_generation_cancels_it_on_the_server(server: ScriptedServer) -> None:
    server.handler = server.hold
    with Client(server.address) as client:
        for chunk in client.generate("Hi"):
            assert chunk.text == "Hel"
            break
        assert server.cancelled.wait(SECONDS)


def test_leaving_a_with_block_cancels_on_the_server(server: ScriptedServer) -> None:
    server.handler = server.hold
    with Client(server.address) as client:
        with client.generate("Hi") as generation:
            next(generation)
        assert server.cancelled.wait(SECONDS)


def test_the_timeout_is_the_calls_deadline(server: ScriptedServer) -> None:
    server.handler = server.hold
    with Client(server.address) as client:
        start = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            client.generate("Hi", timeout=0.3).collect()
        assert time.monotonic() - start >= 0.3
        # Time enough for the call to arrive.
        with client.generate("Hi", timeout=SECONDS):
            wait_for(lambda: max(server.deadlines, default=0) > 0.3, "the call came")
    assert max(server.deadlines) <= 1.02 * SECONDS  # gRPC sends it rounded up by as much as 1 %


def test_no_server_is_unavailable(nobody: str) -> None:
    with Client(nobody) as client:
        with pytest.raises(UnavailableError):
            client.generate("Hi").collect()
        with pytest.raises(UnavailableError):
            client.status()


def test_status_has_every_field_of_the_wire(server: ScriptedServer) -> None:
    names = [field.name for field in dataclasses.fields(ServerStatus)]
    assert names == [field.name for field in pb.GetStatusResponse.DESCRIPTOR.fields]
    with Client(server.address) as client:
        status = client.status()
    plain = names[: names.index("rows")]
    assert {name: getattr(status, name) for name in plain} == {
        name: getattr(server.status, name) for name in plain
    }
    asked = names[len(plain) : names.index("cached_blocks")]
    assert [getattr(status, name) for name in asked] == [(), (), None, None]
    assert (status.cached_blocks, status.prefix_queries, status.prefix_hits) == (0, 0, 0)


@pytest.mark.parametrize(("usable_blocks", "room"), [(10, 64), (3, 49), (0, 0)])
def test_room_for_a_request_is_the_smaller_of_model_and_pool(
    server: ScriptedServer, usable_blocks: int, room: int
) -> None:
    server.status.usable_blocks = usable_blocks
    with Client(server.address) as client:
        assert client.status().max_request_tokens == room


def test_threads_share_a_client(server: ScriptedServer) -> None:
    texts: list[str] = []
    with Client(server.address) as client:
        threads = [
            threading.Thread(target=lambda: texts.append(client.generate("Hi").collect().text))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == ["Hello world"] * 6
