"""Ends a scheduler whose engine stands still, for whoever supervises it to start it again."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from scheduler.core.engine import Engine

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class EngineWatch:
    """Calls `on_stuck` if a look each second finds the engine's loop in the same turn for
    `timeout` seconds on end. A process that was itself stopped, or starved, has not looked
    meanwhile, so its engine has time to go on."""

    def __init__(self, engine: Engine, timeout: float, on_stuck: Callable[[float], None]) -> None:
        self._engine = engine
        self._timeout = timeout
        self._on_stuck = on_stuck
        self._turned_at = 0.0
        self._still = 0.0  # seconds, by looks

    def start(self) -> None:
        threading.Thread(target=self._run, name="engine-watch", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        turned_at = self._engine.status().loop_turned_at
        # Before its start and after its end the loop may stand.
        if turned_at != self._turned_at or not self._engine.runs:
            self._turned_at, self._still = turned_at, 0.0
            return
        self._still += LOOK_SECONDS
        if self._still >= self._timeout:
            self._on_stuck(self._still)


def end_process(still: float) -> NoReturn:
    """Exit status 1, with the stack of every thread in the log: one of them says why. Through
    the log, which waits for a reader that hangs too for a bounded time only."""
    log.critical("the engine's loop has stood for %g s: exit\n%s", still, _stacks())
    os._exit(1)


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
