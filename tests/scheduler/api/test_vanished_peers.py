"""A peer whose machine vanished says nothing and closes nothing: pings find out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

import nanoserve.channel
import scheduler.api.server
from nanoserve import AsyncClient, UnavailableError
from scheduler.core.front_end import FailureKind
from tests.scheduler.api.scripted_engine import ScriptedEngine
from tests.waiting import SECONDS, until

# Milliseconds. By default a ping's answer is awaited for 60 s.
TIMES = {
    "grpc.keepalive_time_ms": 1000,
    "grpc.keepalive_timeout_ms": 1000,
    "grpc.http2.ping_timeout_ms": 1000,
}


def shortened(options: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """The same options with their times shortened; none is added."""
    return tuple((name, TIMES.get(name, value)) for name, value in options)


class Wire:
    """A proxy that passes everything on until it is `cut`, and then nothing."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._pumps: list[asyncio.Task[None]] = []
        self._whole = asyncio.Event()
        self._whole.set()

    async def listen(self) -> str:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        self._whole.clear()

    async def _connected(self, reader, writer) -> None:
        to_reader, to_writer = await asyncio.open_connection(self._host, self._port)
        for pair in ((reader, to_writer), (to_reader, writer)):
            self._pumps.append(asyncio.create_task(self._pump(*pair)))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._whole.wait()
                writer.write(data)
        await self._whole.wait()
        writer.close()

    async def close(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        self._server.close()


@pytest.fixture
async def cut_wire() -> AsyncIterator[Callable]:
    """Starts a generation through a wire, and cuts the wire after the first chunk."""
    made: list[Wire | AsyncClient] = []

    async def start(address: str, engine: ScriptedEngine):
        wire = Wire(address)
        client = AsyncClient(await wire.listen())
        made.extend((client, wire))
        while True:
            chunks = aiter(client.generate(token_ids=[1]))
            # Where the machine stands still for a while, the other side seems to have vanished.
            with contextlib.suppress(UnavailableError):
                await anext(chunks)
                break
        engine.freeze()
        wire.cut()
        return chunks

    yield start
    for thing in made:
        await thing.close()


async def test_the_server_notices_a_client_that_vanished(serve, cut_wire, monkeypatch):
    options = shortened(scheduler.api.server.OPTIONS)
    monkeypatch.setattr(scheduler.api.server, "OPTIONS", options)
    engine = ScriptedEngine([5] * 5000, step_seconds=0.01)
    served = await serve(engine)
    chunks = await cut_wire(served.server.address, engine)
    await until(lambda: len(engine.aborts) == len(engine.submissions))
    assert {abort.reason for abort in engine.aborts} == {FailureKind.CANCELLED}
    chunks.close()


async def test_the_client_notices_a_server_that_vanished(serve, cut_wire, monkeypatch):
    options = shortened(nanoserve.channel._OPTIONS)
    monkeypatch.setattr(nanoserve.channel, "_OPTIONS", options)
    engine = ScriptedEngine([5] * 5000, step_seconds=0.01)
    served = await serve(engine)
    chunks = await cut_wire(served.server.address, engine)
    with pytest.raises(UnavailableError):
        await asyncio.wait_for(chunks.collect(), SECONDS)
