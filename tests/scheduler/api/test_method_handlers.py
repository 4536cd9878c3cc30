"""What cannot be decoded is refused like other bad input, and counted."""

from __future__ import annotations

import logging

import grpc
import pytest
from grpc_health.v1 import health_pb2

from nanoserve.v1.inference_pb2 import GenerateRequest
from tests.scheduler.api.scripted_engine import ScriptedEngine

GENERATE = "/nanoserve.v1.InferenceService/Generate"
TRUNCATED = GenerateRequest(text="a b c").SerializeToString()[:-1]
LATIN_1 = GenerateRequest(text="cafe").SerializeToString().replace(b"e", b"\xe9")


async def sent(served, method: str, data: bytes, *, streams: bool) -> grpc.aio.AioRpcError:
    channel = served.channel
    call = channel.unary_stream(method)(data) if streams else channel.unary_unary(method)(data)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await (call.read() if streams else call)
    return raised.value


@pytest.mark.parametrize("data", [TRUNCATED, LATIN_1, b"\xff"])
async def test_a_request_that_cannot_be_decoded_is_invalid_counted_and_told_of_once(
    serve, caplog, data
):
    caplog.set_level(logging.INFO)
    served = await serve(ScriptedEngine([5, 2]))
    error = await sent(served, GENERATE, data, streams=True)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == (
        "the request cannot be decoded as nanoserve.v1.GenerateRequest: it is no such protobuf "
        "message, or a string in it is not UTF-8"
    )
    totals = served.server._service._records.totals
    assert (totals.outcomes, totals.refusals) == ({"invalid": 1}, {"invalid": 1})
    assert served.engine.log == []
    (told,) = [r for r in caplog.records if r.getMessage() == "request ended"]
    assert told.fields["error"] == error.details()
    assert not [r for r in caplog.records if r.exc_info]


@pytest.mark.parametrize(
    ("method", "kind", "streams"),
    [
        ("nanoserve.v1.InferenceService/GetStatus", "nanoserve.v1.GetStatusRequest", False),
        ("nanoserve.v1.InferenceService/WatchStatus", "nanoserve.v1.WatchStatusRequest", True),
        ("grpc.health.v1.Health/Check", "grpc.health.v1.HealthCheckRequest", False),
        ("grpc.health.v1.Health/Watch", "grpc.health.v1.HealthCheckRequest", True),
    ],
)
async def test_so_it_is_by_every_method(serve, caplog, method, kind, streams):
    served = await serve(ScriptedEngine([5, 2]))
    error = await sent(served, f"/{method}", b"\xff", streams=streams)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(f"the request cannot be decoded as {kind}: ")
    assert not caplog.records
    answer = await served.health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
