"""Binding, keepalive and the drained end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import grpc
import pytest

from nanoserve.v1 import inference_pb2, inference_pb2_grpc
from nanoserve.v1.inference_pb2 import GenerateRequest, TokenIds
from scheduler.api import server as server_module
from scheduler.api.address import AddressError, check_address, clear_unix_path
from scheduler.api.server import ApiServer, ServerConfig
from scheduler.api.service import ServedModel
from tests.scheduler.api.scripted_engine import ScriptedEngine
from tests.waiting import SECONDS, until

MODEL = ServedModel("tiny", None, frozenset([2]))
PROMPT = {"token_ids": TokenIds(ids=[1])}


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:0", "127.9.9.9:65535", "[::1]:50051", "localhost:1", "unix:/a", "unix:relative"],
)
def test_addresses_of_this_machine_are_taken(address):
    check_address("--listen", address, "and nothing is encrypted")


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"])
def test_addresses_that_others_reach_need_protection(address):
    with pytest.raises(AddressError) as raised:
        check_address("--listen", address, "and nothing is encrypted")
    assert str(raised.value) == (
        f"--listen {address}: others can reach it, and nothing is encrypted"
    )
    check_address("--listen", address)


@pytest.mark.parametrize(
    "address", ["", "localhost", ":1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "unix:"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(AddressError, match="--worker"):
        check_address("--worker", address)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("drain_timeout", -1.0),
        ("drain_timeout", float("nan")),
        ("max_request_seconds", 0.0),
        ("max_request_seconds", float("inf")),
    ],
)
def test_times_out_of_range_are_refused(field, value):
    with pytest.raises(ValueError, match=f"--{field.replace('_', '-')} {value}"):
        ServerConfig(listen="127.0.0.1:0", **{field: value})


async def started(listen: str) -> ApiServer:
    server = ApiServer(ServerConfig(listen=listen), MODEL, ScriptedEngine([5, 2]))
    await server.start()
    return server


async def answers(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(GenerateRequest(**PROMPT), timeout=SECONDS)
        return [list(response.token_ids) async for response in call][-1][-1:] == [2]


async def test_a_port_in_use_stops_the_start():
    first = await started("127.0.0.1:0")
    assert not first.address.endswith(":0")
    with pytest.raises(AddressError, match=f"--listen {first.address}: cannot be bound"):
        await started(first.address)
    assert await answers(first.address)
    await first.stop()


async def test_a_unix_socket_is_served_not_taken_from_another_and_taken_over_from_the_dead(
    tmp_path: Path, monkeypatch
):
    path = tmp_path / "socket"
    address = f"unix:{path}"
    first = await started(address)
    assert await answers(address)
    with pytest.raises(AddressError, match="another server listens there"):
        await started(address)
    await first.stop()
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    second = await started(address)
    assert await answers(address)
    await second.stop()
    path.unlink(missing_ok=True)
    path.write_text("mine")
    with pytest.raises(AddressError, match="is not a socket"):
        await started(address)
    assert path.read_text() == "mine"


def test_a_unix_socket_that_cannot_be_tried_or_takes_nobody_is_refused_at_once(tmp_path: Path):
    with contextlib.ExitStack() as sockets:
        other = sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        other.bind(f"{tmp_path}/other")
        with pytest.raises(AddressError, match="/other: the socket there cannot be tried: Proto"):
            clear_unix_path(f"unix:{tmp_path}/other")
        full = sockets.enter_context(socket.socket(socket.AF_UNIX))
        full.bind(f"{tmp_path}/full")
        full.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = sockets.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(f"{tmp_path}/full")
        with pytest.raises(AddressError, match="another server listens there"):
            clear_unix_path(f"unix:{tmp_path}/full")


async def test_a_drain_lets_running_calls_finish_and_refuses_new_ones(serve):
    engine = ScriptedEngine([5] * 5000 + [2], step_seconds=0.02)
    served = await serve(engine, drain_timeout=1000)
    running = asyncio.ensure_future(served.generate(**PROMPT))
    await until(lambda: engine.running)
    draining = asyncio.ensure_future(served.server.drain())
    await until(lambda: engine.drain_deadline)
    error = await served.error(**PROMPT)
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert error.details() == "the server is draining; use another one"
    status = await served.stub.GetStatus(inference_pb2.GetStatusRequest())
    assert (status.ready, status.reason) == (False, "the server is draining")
    assert not running.done()
    engine.finish()
    responses = await running
    assert responses[-1].finish_reason == inference_pb2.FINISH_REASON_STOP
    assert sum(len(response.token_ids) for response in responses) == 5001
    await asyncio.wait_for(draining, SECONDS)
    assert engine.drain_deadline - time.monotonic() > 900


async def test_what_a_drain_cannot_finish_ends_with_a_clear_status(serve, monkeypatch):
    monkeypatch.setattr(server_module, "_LAST_WORDS_SECONDS", SECONDS)  # for the engine's
    served = await serve(ScriptedEngine([5] * 5000, step_seconds=0.005), drain_timeout=0.2)
    running = asyncio.ensure_future(served.error(**PROMPT))
    await until(lambda: served.engine.running)
    await served.server.drain()
    error = await running
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the drain ended")


async def test_a_drain_ends_calls_itself_if_the_engine_is_stuck(serve, monkeypatch):
    monkeypatch.setattr(server_module, "_LAST_WORDS_SECONDS", 0.1)  # there will be none
    served = await serve(ScriptedEngine([5] * 5000, step_seconds=0.005), drain_timeout=0.1)
    running = asyncio.ensure_future(served.error(**PROMPT))
    await until(lambda: served.engine.running)
    served.engine.freeze()
    await served.server.drain()
    error = await running
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert error.details() == "the server stopped before the request was finished"
    served.engine.thaw()


async def test_events_after_the_end_are_dropped_quietly():
    server = await started("127.0.0.1:0")
    await server.stop()
    server._loop = asyncio.new_event_loop()
    server._loop.close()
    told: list[object] = []
    server._health.refresh = lambda: told.append(None)
    server.status_changed(ScriptedEngine([2]).status())
    assert told == []


SILENCE_SECONDS = 9
PINGS = [
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


async def silent_call(address: str) -> grpc.StatusCode:
    """How a call ends whose answer takes SILENCE_SECONDS, with a ping a second."""
    async with grpc.aio.insecure_channel(address, options=PINGS) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        try:
            _ = [response async for response in stub.Generate(GenerateRequest(**PROMPT))]
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


async def idle_channel(address: str) -> bool:
    """Whether a channel without calls keeps its connection, with a ping a second."""
    async with grpc.aio.insecure_channel(address, options=PINGS) as channel:
        await channel.channel_ready()
        leaves = asyncio.ensure_future(
            channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        )
        done, _ = await asyncio.wait([leaves], timeout=SILENCE_SECONDS)
        leaves.cancel()
        return not done


async def test_a_silent_call_and_an_idle_channel_survive_a_ping_a_second():
    """And do not with default settings: the control, without which this shows nothing."""

    class Default(inference_pb2_grpc.InferenceServiceServicer):
        async def Generate(self, request, context):
            await asyncio.sleep(SILENCE_SECONDS)

    control = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Default(), control)
    port = control.add_insecure_port("127.0.0.1:0")
    await control.start()
    engine = ScriptedEngine([2], step_seconds=SILENCE_SECONDS)
    server = ApiServer(ServerConfig(listen="127.0.0.1:0"), MODEL, engine)
    await server.start()
    ours, idle, default = await asyncio.gather(
        silent_call(server.address), idle_channel(server.address), silent_call(f"127.0.0.1:{port}")
    )
    await control.stop(0)
    await server.stop()
    assert default == grpc.StatusCode.UNAVAILABLE
    assert ours == grpc.StatusCode.OK
    assert idle
