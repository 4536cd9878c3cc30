"""A worker whose device computes for as long as a test holds it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from tests.waiting import SECONDS
from tests.worker.running_worker import small_geometry
from worker.executor import StepOutput
from worker.simulate import SimulatedExecutor, SimulatedPending
from worker.step import CheckedStep


class HeldExecutor(SimulatedExecutor):
    """A repetition of a step ends when the test has released it, one after the other."""

    def __init__(self) -> None:
        super().__init__(small_geometry())
        self._released = threading.Semaphore(0)

    def release(self, count: int = 1) -> None:
        """Lets so many more repetitions end."""
        self._released.release(count)

    def launch(self, step: CheckedStep) -> Sequence[HeldPending]:
        return [HeldPending(made, self._released) for made in super().launch(step)]


@dataclass(frozen=True, slots=True)
class HeldPending:
    made: SimulatedPending
    released: threading.Semaphore
    inline_ns: int = 0

    def wait(self) -> StepOutput:
        assert self.released.acquire(timeout=SECONDS), "nobody released it"
        return self.made.wait()
