"""A front end that runs, as the engine's process sees it."""

from __future__ import annotations

import asyncio
import time

from scheduler.fronts.connection import Connection
from scheduler.fronts.frames import frame
from scheduler.fronts.front_end_process import FrontEndProcess
from scheduler.fronts.hub import Hub
from scheduler.fronts.messages import Alive, Drain, Message, Started

# A front end speaks once a second. One that was silent for this long is stuck, as its
# calls are.
SILENT_SECONDS = 10.0
# Until it has loaded its tokenizer it says nothing.
STARTING_SECONDS = 60.0


class AttachedFrontEnd:
    """Joined to the hub from its making to its end, which comes when its socket closes or it is
    silent for too long. To be made and used on the loop."""

    def __init__(self, process: FrontEndProcess, hub: Hub) -> None:
        self.process = process
        self.started = False  # it serves
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # why
        self._hub = hub
        self._heard = time.monotonic()
        self._connection = Connection(process.socket, self._receive, self._end)
        hub.join(process.number, self._connection.send)

    def excuse_silence(self) -> None:
        """Its silence so far is not its own fault."""
        self._heard = time.monotonic()

    def check(self) -> None:
        """Ends it if it is stuck."""
        limit = SILENT_SECONDS if self.started else STARTING_SECONDS
        if time.monotonic() - self._heard > limit:
            self.process.kill()
            self._connection.end(f"it was silent for {limit:g} s")

    def drain(self) -> None:
        self._connection.send(frame(Drain()))

    def _receive(self, message: Message) -> None:
        self._heard = time.monotonic()
        match message:
            case Started():
                self.started = True
            case Alive():
                pass
            case _:
                self._hub.received(self.process.number, message)

    def _end(self, reason: str) -> None:
        self._hub.leave(self.process.number)
        if not self.ended.done():  # whoever waited for it may have been cancelled
            self.ended.set_result(reason)
