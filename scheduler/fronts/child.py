"""What runs in a front end's process."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import threading
import time

from scheduler.api.server import ApiServer, ServerConfig
from scheduler.api.service import ServedModel
from scheduler.core.front_end import FrontEnd
from scheduler.fronts.remote_engine import RemoteEngine

log = logging.getLogger(__name__)

# Clients of a front end whose engine is gone are told so within this.
_LAST_WORDS_SECONDS = 0.5
# A front end that is stuck as well ends after this.
_ORPHAN_SECONDS = 5.0


def obey_parent_only() -> None:
    """Both signals often reach all processes of a group; the parent has them, and tells."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


async def serve_front_end(config: ServerConfig, model: ServedModel, sock: socket.socket) -> bool:
    """Serves until the engine's process, at the other end of `sock`, says that it is enough:
    then true. False: that process is gone."""
    ending, lost = asyncio.Event(), asyncio.Event()

    def on_lost() -> None:
        lost.set()
        ending.set()

    engine: RemoteEngine | None = None

    def make_engine(front_end: FrontEnd) -> RemoteEngine:
        nonlocal engine
        engine = RemoteEngine(sock, front_end, ending.set, on_lost)
        return engine

    _die_with_parent(sock.dup())
    server = ApiServer(config, model, make_engine)
    await server.start()
    await ending.wait()
    await server.drain(_LAST_WORDS_SECONDS if lost.is_set() else None)
    await server.stop()
    if engine is not None:
        await engine.close()
    log.info("stopped")
    return not lost.is_set()


def _die_with_parent(sock: socket.socket) -> None:
    """Whatever else happens here: when the other end of `sock` closes, this process ends."""

    def watch() -> None:
        poll = select.poll()
        poll.register(sock, 0)  # hang-ups alone
        poll.poll()
        time.sleep(_ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="orphan-watch", daemon=True).start()
