"""WatchStatus: at an interval, at once when readiness changes, to the end of a drain."""

from __future__ import annotations

import asyncio
import itertools

import grpc
import pytest

from nanoserve import errors
from nanoserve.v1.inference_pb2 import TokenIds, WatchStatusRequest
from scheduler.api import shared_snapshots, status_calls
from tests.scheduler.api.scripted_engine import ScriptedEngine
from tests.scheduler.api.test_status import OWNERS, ROWS, engine, status_of
from tests.waiting import SECONDS, until


async def uptime(served) -> float:
    """Seconds, by the server's clock, as statuses have it."""
    return (await status_of(served)).uptime_seconds


def watch(served, timeout: float = SECONDS, **fields: object):
    return served.stub.WatchStatus(WatchStatusRequest(**fields), timeout=timeout)


async def test_statuses_come_at_once_and_at_the_interval_with_what_was_asked_for(serve):
    served = await serve(engine())
    begin = await uptime(served)
    call = watch(served, interval_seconds=0.1, include_rows=True, include_block_map=True)
    statuses = [(await call.read()).status for _ in range(4)]
    call.cancel()
    for status in statuses:
        assert (status.ready, list(status.rows), list(status.block_owners)) == (True, ROWS, OWNERS)
        assert not status.HasField("inter_token_latency")
    uptimes = [status.uptime_seconds for status in statuses]
    assert uptimes[-1] - begin > 0.29, "three intervals"
    assert all(before < after for before, after in itertools.pairwise(uptimes))


async def test_the_interval_is_a_second_unless_the_request_says_otherwise(serve):
    served = await serve(engine())
    begin = await uptime(served)
    call = watch(served)
    _, second = [(await call.read()).status for _ in range(2)]
    assert second.uptime_seconds - begin > 0.99
    call.cancel()


@pytest.mark.parametrize("interval", [0.0, -1.0, 0.0999, 60.001, float("inf"), float("nan")])
async def test_an_interval_out_of_range_is_refused_with_its_limits(serve, interval):
    served = await serve(engine())
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await watch(served, interval_seconds=interval).read()
    error = errors.from_rpc(raised.value)
    assert isinstance(error, errors.InvalidRequestError)
    assert [violation.field for violation in error.violations] == ["interval_seconds"]
    assert error.message == (
        f"interval_seconds: is {interval:g}, must be 0.1 <= interval_seconds <= 60"
    )


async def test_a_watcher_too_many_is_refused_until_another_leaves(serve, monkeypatch):
    monkeypatch.setattr(status_calls, "MAX_WATCHERS", 2)
    served = await serve(engine())
    calls = [watch(served) for _ in range(2)]
    for call in calls:
        await call.read()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await watch(served).read()
    error = errors.from_rpc(raised.value)
    assert isinstance(error, errors.OverloadedError)
    assert error.retry_after == 10
    assert error.message == (
        "2 calls of WatchStatus are open, and the limit is 2; end one, or call GetStatus"
    )
    calls[0].cancel()
    await until(lambda: served.server._service._status._num_watchers == 1)
    third = watch(served)
    assert (await third.read()).status.model == "tiny"
    for call in (calls[1], third):
        call.cancel()


def test_the_number_of_watchers_is_the_contracts():
    assert status_calls.MAX_WATCHERS == 64


async def test_many_watchers_cost_the_engine_no_more_snapshots_than_one(serve, monkeypatch):
    monkeypatch.setattr(shared_snapshots, "FRESH_SECONDS", 60.0)
    served = await serve(engine())
    calls = [watch(served, interval_seconds=60, include_rows=True) for _ in range(30)]
    firsts = await asyncio.gather(*(call.read() for call in calls))
    assert all(list(first.status.rows) == ROWS for first in firsts)
    assert len(served.engine.snapshots_asked) == 1
    for call in calls:
        call.cancel()


async def test_a_change_of_readiness_is_told_at_once(serve):
    served = await serve(ScriptedEngine([2]))
    call = watch(served, interval_seconds=60)
    assert (await call.read()).status.ready
    served.engine.set_ready(False)
    async with asyncio.timeout(SECONDS):
        assert not (await call.read()).status.ready
    served.engine.set_ready(True)
    async with asyncio.timeout(SECONDS):
        assert (await call.read()).status.ready
    call.cancel()


async def test_changes_of_readiness_do_not_put_the_next_interval_off(serve, monkeypatch):
    served = await serve(ScriptedEngine([2]))
    loop, passed = asyncio.get_running_loop(), 0.0
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + passed)
    call = watch(served, interval_seconds=60)
    await call.read()
    passed = 59.0
    served.engine.set_ready(False)
    while (await call.read()).status.ready:
        pass
    served.engine.set_ready(True)
    while not (await call.read()).status.ready:
        pass
    await status_of(served)  # after that the watch waits again
    passed = 61.0
    async with asyncio.timeout(SECONDS / 2):  # far from the interval that a change would begin
        assert (await call.read()).status.ready
    call.cancel()


async def test_a_drain_is_told_at_once_and_the_call_ends_well_when_it_is_over(serve):
    served = await serve(ScriptedEngine([5] * 5000, step_seconds=0.02), drain_timeout=60)
    running = asyncio.ensure_future(served.generate(token_ids=TokenIds(ids=[1])))
    await until(lambda: served.engine.running)
    call = watch(served, interval_seconds=60)
    assert (await call.read()).status.ready
    draining = asyncio.ensure_future(served.server.drain())
    told = (await call.read()).status
    assert (told.ready, told.reason) == (False, "the server is draining")
    assert told.running_requests == 1
    assert not draining.done()
    served.engine.finish()
    responses = await running
    assert responses[-1].finish_reason
    last = (await call.read()).status
    assert (last.ready, last.running_requests) == (False, 0)
    assert await call.read() is grpc.aio.EOF
    assert await call.code() == grpc.StatusCode.OK
    await draining


async def test_a_watcher_does_not_hold_up_a_drain(serve):
    served = await serve(ScriptedEngine([2]), drain_timeout=60)
    call = watch(served, interval_seconds=60)
    await call.read()
    async with asyncio.timeout(40):
        await served.server.drain()
    while (response := await call.read()) is not grpc.aio.EOF:
        assert response.status.reason == "the server is draining"
    assert await call.code() == grpc.StatusCode.OK


async def test_an_engine_that_hangs_does_not_end_the_stream(serve, monkeypatch):
    served = await serve(engine())
    call = watch(served, interval_seconds=0.1, include_rows=True)
    assert list((await call.read()).status.rows) == ROWS
    monkeypatch.setattr(shared_snapshots, "ANSWER_SECONDS", 0.05)
    served.engine.freeze()
    async with asyncio.timeout(SECONDS):
        while not (status := (await call.read()).status).missing_reason:
            pass
    assert (status.model, list(status.rows)) == ("tiny", [])
    monkeypatch.setattr(shared_snapshots, "ANSWER_SECONDS", SECONDS)
    served.engine.thaw()
    async with asyncio.timeout(SECONDS):
        while (status := (await call.read()).status).missing_reason:
            pass
    assert list(status.rows) == ROWS
    call.cancel()


async def test_a_watcher_that_vanishes_is_forgotten(serve):
    served = await serve(engine())
    calls = [watch(served, interval_seconds=0.1) for _ in range(5)]
    for call in calls:
        await call.read()
    assert served.server._service._status._num_watchers == 5
    for call in calls:
        call.cancel()
    await until(lambda: served.server._service._status._num_watchers == 0)
