"""Keeps the front ends' processes running, and ends them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from scheduler.fronts.attached import AttachedFrontEnd
from scheduler.fronts.front_end_process import FrontEndProcess
from scheduler.fronts.hub import Hub

log = logging.getLogger(__name__)

TICK_SECONDS = 0.05
# What stands still for longer than this is we, or the machine.
_LATE_SECONDS = 1.0
# Seconds before a front end that died is replaced: doubles, and begins anew with one that
# served for a while.
FIRST_DELAY, MOST_DELAY, SERVED_SECONDS = 0.1, 5.0, 30.0
# From a front end's closing its socket to the end of its process: it may have a log to write.
_EXIT_SECONDS = 5.0


class FrontEndError(Exception):
    """A front end cannot start; it has logged why."""


class Supervisor:
    """One keeper for each front end, and a tick for all. Used on the event loop."""

    def __init__(
        self,
        hub: Hub,
        first: Sequence[FrontEndProcess],
        start_another: Callable[[], FrontEndProcess],
    ) -> None:
        """`first` have been started already, one for each place."""
        self._hub = hub
        self._first = first
        self._start_another = start_another
        self._front_ends: set[AttachedFrontEnd] = set()
        self._draining = asyncio.Event()

    async def run(self) -> None:
        """Returns once all have ended after `drain`. Raises FrontEndError if one of the first
        ends before it serves."""
        ticking = asyncio.create_task(self._tick())
        try:
            async with asyncio.TaskGroup() as keepers:
                for process in self._first:
                    keepers.create_task(self._keep(process))
        except* FrontEndError as errors:
            raise FrontEndError(str(errors.exceptions[0])) from None
        finally:
            ticking.cancel()
            self.kill()

    def drain(self) -> None:
        """Tells all to end once their calls have, and replaces none any more."""
        self._draining.set()
        for front_end in self._front_ends:
            front_end.drain()

    def kill(self) -> None:
        """Ends at once whatever still runs."""
        for front_end in self._front_ends:
            front_end.process.kill()

    async def _keep(self, first: FrontEndProcess) -> None:
        process: FrontEndProcess | None = first
        delay = FIRST_DELAY
        while process is not None:
            began = time.monotonic()
            front_end, how = await self._attend(process)
            if self._draining.is_set():
                return
            if process is first and not front_end.started:
                raise FrontEndError(f"front end {process.number} ended before it served ({how})")
            log.error("front end %d is lost, its calls with it: %s", process.number, how)
            if time.monotonic() - began > SERVED_SECONDS:
                delay = FIRST_DELAY
            process, delay = await self._replacement(delay)

    async def _replacement(self, delay: float) -> tuple[FrontEndProcess | None, float]:
        """After `delay` seconds, with the delay of the one that replaces it. None: drained."""
        while not await self._drains_within(delay):
            delay = min(2 * delay, MOST_DELAY)
            try:
                process = self._start_another()
            except OSError as error:
                log.error("a front end cannot be started: %s; trying again", error)
                continue
            log.info("front end %d takes its place", process.number)
            return process, delay
        return None, delay

    async def _attend(self, process: FrontEndProcess) -> tuple[AttachedFrontEnd, str]:
        """Until its end: with how it ended."""
        front_end = AttachedFrontEnd(process, self._hub)
        self._front_ends.add(front_end)
        reason = await front_end.ended
        how = await asyncio.to_thread(process.wait, _EXIT_SECONDS)
        self._front_ends.remove(front_end)
        return front_end, f"{reason} ({how})"

    async def _drains_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._draining.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _tick(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._hub.tell_status()
            late = time.monotonic() - last > _LATE_SECONDS
            last = time.monotonic()
            for front_end in list(self._front_ends):
                if late:
                    front_end.excuse_silence()
                front_end.check()
