"""`python -m deploy.loadtest.generate FD`: a generator process, started by fleet.py, at the
other end of the socket FD. It ends when that closes."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

from deploy.loadtest.generator import Generator
from deploy.loadtest.grpc_target import GrpcTarget
from deploy.loadtest.orders import (
    Broken,
    Counts,
    Done,
    Looped,
    Ready,
    Scheduled,
    Setup,
    Start,
    Stop,
)
from deploy.loadtest.plan import Nanoserve
from deploy.loadtest.target import Failed, Target

_COUNTS_SECONDS = 0.25


async def serve(connection: Connection) -> None:
    """Answers the run's messages until it is gone."""
    messages: asyncio.Queue[Any] = asyncio.Queue()
    generator: Generator | None = None

    def receive() -> None:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            message = None
            asyncio.get_running_loop().remove_reader(connection.fileno())
        if generator is not None and (message is None or isinstance(message, Stop)):
            generator.stop()
        messages.put_nowait(message)

    asyncio.get_running_loop().add_reader(connection.fileno(), receive)
    setup: Setup | None = await messages.get()
    if setup is None:
        return
    target = _target(setup)
    try:
        if setup.plan.realtime:
            _come_first()
        await target.open()
        generator = Generator(setup, target)
        connection.send(Ready())
        await _carry_out(generator, connection, messages)
    except Failed as failure:
        connection.send(Broken(f"{failure.status}: {failure.detail}"))
    except (BrokenPipeError, ConnectionResetError):
        pass  # the run is gone
    finally:
        await target.close()


async def _carry_out(
    generator: Generator, connection: Connection, messages: asyncio.Queue[Any]
) -> None:
    order = None
    while (message := await messages.get()) is not None:
        if isinstance(message, Scheduled | Looped):
            order = message
            generator.prepare(order)
            # What stands for the whole run is not to be looked at again and again, which
            # would stop the loop for tens of milliseconds.
            gc.collect()
            gc.freeze()
            connection.send(Ready())
        elif isinstance(message, Start) and order is not None:
            counting = asyncio.create_task(_send_counts(generator, connection))
            timelines = await generator.run(order, message)
            counting.cancel()
            connection.send(Done(timelines))


async def _send_counts(generator: Generator, connection: Connection) -> None:
    while True:
        await asyncio.sleep(_COUNTS_SECONDS)
        connection.send(Counts(*generator.counts))


def _come_first() -> None:
    """Raises Failed if the system does not let us."""
    try:
        lowest = os.sched_get_priority_min(os.SCHED_RR)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(lowest))
    except PermissionError:
        reason = "--realtime needs root or CAP_SYS_NICE: run without it"
        raise Failed("PERMISSION", reason) from None


def _target(setup: Setup) -> Target:
    if isinstance(setup.plan.target, Nanoserve):
        return GrpcTarget(setup.plan.target, setup.plan)
    from deploy.loadtest.openai_target import OpenAITarget  # aiohttp is not small

    return OpenAITarget(setup.plan.target, setup.plan)


if __name__ == "__main__":
    asyncio.run(serve(Connection(int(sys.argv[1]))))
