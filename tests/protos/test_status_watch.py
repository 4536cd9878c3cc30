"""Typed statuses, one at a time and as a stream, of both clients."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest

from nanoserve import (
    AsyncClient,
    BlockOwner,
    Client,
    InvalidRequestError,
    LatencyHistogram,
    RunningRow,
    ServerStatus,
    UnavailableError,
)
from nanoserve.v1 import inference_pb2 as pb
from tests.protos.scripted_server import ScriptedServer
from tests.waiting import SECONDS

ROW = RunningRow(
    row=3,
    request_id="one",
    prompt_tokens=8,
    computed_tokens=11,
    output_tokens=4,
    max_tokens=9,
    blocks=1,
    running_seconds=0.5,
)


@pytest.fixture
def full(server: ScriptedServer) -> ScriptedServer:
    """A server whose statuses carry everything."""
    row = pb.RunningRow(**{name: getattr(ROW, name) for name in RunningRow.__slots__})
    server.status.rows.append(row)
    server.status.block_owners.extend([-2, 3, -1, -3])
    histogram = pb.LatencyHistogram(bounds_seconds=[0.5], counts=[2, 1], sum_seconds=1.25)
    server.status.time_to_first_token.CopyFrom(histogram)
    server.status.inter_token_latency.CopyFrom(histogram)
    return server


def check(status: ServerStatus) -> None:
    assert status.rows == (ROW,)
    assert status.rows[0].computed_prompt_tokens == 8
    assert status.block_owners == (BlockOwner.SCRATCH, 3, BlockOwner.FREE, BlockOwner.CACHED)
    assert status.time_to_first_token == LatencyHistogram((0.5,), (2, 1), 1.25)
    assert status.inter_token_latency == status.time_to_first_token


async def test_a_status_is_typed_and_asks_for_what_it_was_told_to(full: ScriptedServer) -> None:
    with Client(full.address) as client:
        check(client.status(rows=True, block_map=True))
        client.status()
    async with AsyncClient(full.address) as client:
        check(await client.status(latencies=True))
    assert full.status_requests == [
        pb.GetStatusRequest(include_rows=True, include_block_map=True),
        pb.GetStatusRequest(),
        pb.GetStatusRequest(include_latencies=True),
    ]


async def test_a_watch_yields_statuses_to_the_end_of_the_drain(full: ScriptedServer) -> None:
    full.watcher = lambda _request, _context: iter([full.status, full.status])
    with Client(full.address) as client, client.watch_status(0.5, rows=True) as watch:
        statuses = list(watch)
    async with AsyncClient(full.address) as client:
        watch = client.watch_status(block_map=True, latencies=True)
        statuses += [status async for status in watch]
    assert len(statuses) == 4
    for status in statuses:
        check(status)
    assert full.status_requests == [
        pb.WatchStatusRequest(interval_seconds=0.5, include_rows=True),
        pb.WatchStatusRequest(include_block_map=True, include_latencies=True),
    ]
    assert not full.status_requests[1].HasField("interval_seconds")


def test_a_watch_closed_by_another_thread_ends_quietly(server: ScriptedServer) -> None:
    server.watcher = server.watch_for_ever
    with Client(server.address) as client:
        watch = client.watch_status()
        assert next(watch).model == "tiny"
        closer = threading.Timer(0.05, watch.close)
        closer.start()
        assert list(watch) == []
        closer.join()
    assert server.cancelled.wait(SECONDS)


async def test_an_async_watch_closed_while_it_is_awaited_ends_quietly(
    server: ScriptedServer,
) -> None:
    server.watcher = server.watch_for_ever
    async with AsyncClient(server.address) as client:
        async with client.watch_status() as watch:
            assert (await anext(watch)).model == "tiny"
            asyncio.get_running_loop().call_later(0.05, watch.close)
            assert [status async for status in watch] == []
        assert await asyncio.to_thread(server.cancelled.wait, SECONDS)


async def test_leaving_or_dropping_a_watch_ends_its_call(server: ScriptedServer) -> None:
    server.watcher = server.watch_for_ever
    with Client(server.address) as client:
        with client.watch_status() as watch:
            next(watch)
        assert server.cancelled.wait(SECONDS)
    server.cancelled.clear()
    async with AsyncClient(server.address) as client:
        watch = client.watch_status()
        await anext(watch)
        del watch
        assert await asyncio.to_thread(server.cancelled.wait, SECONDS)


async def test_a_cancelled_task_is_cancelled_and_not_taken_for_the_end(
    server: ScriptedServer,
) -> None:
    server.watcher = server.watch_for_ever
    async with AsyncClient(server.address) as client:
        watch = client.watch_status()
        await anext(watch)
        task = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_the_server_refuses_is_raised_on_iteration(server: ScriptedServer) -> None:
    def refuse(_request: pb.WatchStatusRequest, context: grpc.ServicerContext):
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "interval_seconds: is 0")
        yield

    server.watcher = refuse
    with Client(server.address) as client, pytest.raises(InvalidRequestError, match="is 0"):
        next(client.watch_status(0))
    async with AsyncClient(server.address) as client:
        with pytest.raises(InvalidRequestError, match="is 0"):
            await anext(client.watch_status(0))


def test_a_server_that_is_gone_is_unavailable(nobody: str) -> None:
    with Client(nobody) as client, pytest.raises(UnavailableError):
        next(client.watch_status())
