"""Ends the process when a step hangs: whoever supervises it must start another one.

Two clocks watch. A thread looks at what is being watched and names what hangs: a device that is
wedged, a step that never ends. It needs the interpreter's lock for that, which a step that hangs
may hold; so it also winds up a timer in C (faulthandler's), which needs no lock: one that is not
wound up again in time writes every thread's stack to stderr and ends the process.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from worker.executor import Executor, Pending, StepOutput
from worker.geometry import Geometry
from worker.step import CheckedStep

log = logging.getLogger(__name__)

# Seconds, by device. A CPU may compute a long prompt of a large model for minutes.
DEFAULT_TIMEOUTS = {"cuda": 60.0, "cpu": 300.0, "simulated": 60.0}

# Between looks; a hang is noticed that much later at most.
_TICK_SECONDS = 0.5
# Of the step timeout, or two looks if that is more: so much later the timer in C ends the process.
# The thread, which says why and leaves the recordings time, comes first on a busy machine too.
_GRACE_SHARE = 0.1


class StepTimeout(Exception):
    """A step was not done within the step timeout."""


def check_timeout(seconds: float | None) -> None:
    """Raises ValueError for a step timeout out of range; None stands for the default."""
    if seconds is not None and not 0 < seconds < 1e6:
        raise ValueError(f"--step-timeout is {seconds} s, must be above 0 and below 1e6")


class Watchdog:
    """`timeout`: seconds that a watched piece of work may take. `on_hang` gets a StepTimeout and
    is to end the process with a status other than 0, as the timer in C does (with 1).

    Not to be started before the warm-up is over: compiling is not hanging. A process has one at a
    time, as it has one timer in C.
    """

    def __init__(self, timeout: float, on_hang: Callable[[StepTimeout], object]) -> None:
        check_timeout(timeout)
        self.timeout = timeout
        self._on_hang = on_hang
        self._since: dict[int, float] = {}  # by thread: when its work began, time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and the timer; nothing may be watched any more."""
        self._stopped.set()
        self._thread.join()

    @contextmanager
    def watching(self) -> Generator[None, None, None]:
        """Watches what the calling thread does inside; not to be nested."""
        thread = threading.get_ident()
        self._since[thread] = time.monotonic()
        try:
            yield
        finally:
            del self._since[thread]

    def oldest(self) -> float:
        """Seconds that the longest of the work being watched has taken; 0 if there is none."""
        now = time.monotonic()  # before: what ends and begins meanwhile is no older than it was
        return max((now - since for since in list(self._since.values())), default=0.0)

    def _run(self) -> None:
        grace = max(2 * _TICK_SECONDS, _GRACE_SHARE * self.timeout)
        while (oldest := self.oldest()) < self.timeout:
            # Replaces the timer of the last look.
            faulthandler.dump_traceback_later(
                self.timeout - oldest + grace, exit=True, file=sys.__stderr__
            )
            if self._stopped.wait(min(_TICK_SECONDS, self.timeout / 4)):
                faulthandler.cancel_dump_traceback_later()
                return
        faulthandler.cancel_dump_traceback_later()
        faulthandler.dump_traceback(file=sys.__stderr__)
        self._on_hang(
            StepTimeout(f"a step was not done within the step timeout of {self.timeout:g} s")
        )


class WatchedExecutor:
    """An Executor (worker/executor.py) whose steps are watched once it is warm."""

    def __init__(self, executor: Executor, watchdog: Watchdog) -> None:
        self._executor = executor
        self._watchdog = watchdog

    @property
    def geometry(self) -> Geometry:
        return self._executor.geometry

    def warm_up(self) -> None:
        self._executor.warm_up()
        self._watchdog.start()

    def close(self) -> None:
        """Watches no longer; for a process that goes on after its last step."""
        self._watchdog.stop()

    def launch(self, step: CheckedStep) -> Sequence[Pending]:
        with self._watchdog.watching():
            pendings = self._executor.launch(step)
        return [_WatchedPending(pending, self._watchdog) for pending in pendings]


@dataclass(frozen=True, slots=True)
class _WatchedPending:
    pending: Pending
    watchdog: Watchdog

    @property
    def inline_ns(self) -> int:
        return self.pending.inline_ns

    def wait(self) -> StepOutput:
        with self.watchdog.watching():
            return self.pending.wait()
