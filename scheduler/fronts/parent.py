"""What runs in the engine's process when the front ends have processes of their own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from scheduler.api.stop_signals import take_over
from scheduler.core.front_end import EnginePort
from scheduler.fronts.front_end_process import FrontEndProcess
from scheduler.fronts.hub import Hub
from scheduler.fronts.supervisor import Supervisor

log = logging.getLogger(__name__)

# After the drain's deadline: for the last words to clients, which front ends hurry with
# (scheduler/api/server.py), and for one that stands still meanwhile.
_LAST_WORDS_SECONDS = 5.0
_ENGINE_STOP_SECONDS = 0.4


class RunningEngine(EnginePort, Protocol):
    """An engine that is started and stopped here."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


async def serve_apart(
    make_engine: Callable[[Hub], RunningEngine],
    first: Sequence[FrontEndProcess],
    start_another: Callable[[], FrontEndProcess],
    drain_timeout: float,
    hub: Hub,
) -> None:
    """Serves until SIGTERM or SIGINT, then drains. A second signal ends all at once. Raises
    FrontEndError if a front end cannot start."""
    engine = make_engine(hub)
    hub.attach(engine)
    supervisor = Supervisor(hub, first, start_another)
    stopping = asyncio.Event()

    def on_signal(number: int) -> None:
        if stopping.is_set():
            log.warning("second signal: stopping at once")
            supervisor.kill()
            os._exit(128 + number)
        log.info("draining for at most %g seconds", drain_timeout)
        stopping.set()

    take_over(asyncio.get_running_loop(), on_signal)
    engine.start()
    try:
        await _run(supervisor, engine, stopping, drain_timeout)
    finally:
        await _stop(engine)
    log.info("stopped")


async def _run(
    supervisor: Supervisor, engine: EnginePort, stopping: asyncio.Event, drain_timeout: float
) -> None:
    """Until all front ends have ended, after `stopping` or for want of one."""
    running = asyncio.create_task(supervisor.run())
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if stopping.is_set():
        engine.drain(time.monotonic() + drain_timeout)
        supervisor.drain()
        await asyncio.wait((running,), timeout=drain_timeout + _LAST_WORDS_SECONDS)
        supervisor.kill()
    await running


async def _stop(engine: RunningEngine) -> None:
    """An engine that is stuck must not keep the process from ending."""
    stopping = threading.Thread(target=engine.stop, name="stop-engine", daemon=True)
    stopping.start()
    await asyncio.to_thread(stopping.join, _ENGINE_STOP_SECONDS)
