"""Health tells readiness and liveness apart, at once and without a false green."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from scheduler.api import health as health_module
from tests.scheduler.api.scripted_engine import ScriptedEngine
from tests.waiting import SECONDS

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING
UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN
READINESS = ["", "nanoserve.v1.InferenceService"]
LIVENESS = "nanoserve.liveness"


async def check(served, service: str) -> int:
    request = HealthCheckRequest(service=service)
    return (await served.health.Check(request, timeout=SECONDS)).status


async def becomes(served, service: str, status: int) -> None:
    async with asyncio.timeout(SECONDS):
        while await check(served, service) != status:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("service", READINESS)
async def test_readiness_follows_the_engine(serve, service):
    served = await serve(ScriptedEngine([2], limits=None))
    assert await check(served, service) == NOT_SERVING
    assert await check(served, LIVENESS) == SERVING
    served.engine.set_ready(True)
    await becomes(served, service, SERVING)
    served.engine.set_ready(False)
    await becomes(served, service, NOT_SERVING)


async def test_an_engine_that_stands_still_is_neither_alive_nor_ready(serve, monkeypatch):
    served = await serve(ScriptedEngine([2]))
    assert await check(served, LIVENESS) == SERVING
    served.server._health._stuck_seconds = 0.2
    served.engine.freeze()
    for service in (LIVENESS, ""):
        await becomes(served, service, NOT_SERVING)
    served.engine.thaw()
    served.server._health._stuck_seconds = SECONDS
    await becomes(served, LIVENESS, SERVING)
    await becomes(served, "", SERVING)


async def test_an_unknown_service_is_not_found(serve):
    served = await serve(ScriptedEngine([2]))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await check(served, "nobody")
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND
    assert "'nobody'" in raised.value.details()
    assert "nanoserve.liveness" in raised.value.details()


async def test_watchers_see_every_change_also_after_another_left(serve):
    served = await serve(ScriptedEngine([2]))
    leaving, staying = (
        served.health.Watch(HealthCheckRequest(service=""), timeout=SECONDS) for _ in range(2)
    )
    unknown = served.health.Watch(HealthCheckRequest(service="nobody"), timeout=SECONDS)
    assert [(await call.read()).status for call in (leaving, staying)] == [SERVING, SERVING]
    assert (await unknown.read()).status == UNKNOWN
    leaving.cancel()
    served.engine.set_ready(False)
    assert (await staying.read()).status == NOT_SERVING
    served.engine.set_ready(True)
    assert (await staying.read()).status == SERVING
    for call in (staying, unknown):
        call.cancel()


async def test_draining_is_not_ready_but_alive(serve):
    served = await serve(ScriptedEngine([2]), drain_timeout=1)
    await served.server.drain()
    assert [await check(served, service) for service in READINESS] == [NOT_SERVING] * 2
    assert await check(served, LIVENESS) == SERVING
    served.engine.set_ready(True)
    await asyncio.sleep(0.05)
    assert await check(served, "") == NOT_SERVING


async def test_health_is_refreshed_without_being_told(serve, monkeypatch):
    """A stuck engine tells nobody, so somebody has to look."""
    monkeypatch.setattr(health_module, "REFRESH_SECONDS", 0.02)
    served = await serve(ScriptedEngine([2]))
    assert await check(served, "") == SERVING
    served.engine._ready = False
    await becomes(served, "", NOT_SERVING)
    assert await check(served, "") == NOT_SERVING


async def test_reflection_lists_the_services_and_their_files(serve):
    served = await serve(ScriptedEngine([2]))
    stub = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=READINESS[1]),
    ]
    listed, described = [
        answer async for answer in stub.ServerReflectionInfo(iter(requests), timeout=SECONDS)
    ]
    names = {service.name for service in listed.list_services_response.service}
    assert names == {
        "nanoserve.v1.InferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    files = described.file_descriptor_response.file_descriptor_proto
    parsed = [descriptor_pb2.FileDescriptorProto.FromString(file) for file in files]
    assert "nanoserve/v1/inference.proto" in {file.name for file in parsed}
