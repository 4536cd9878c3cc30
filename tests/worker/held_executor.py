"""A simulated worker whose device answers when a test lets it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from tests.waiting import SECONDS
from tests.worker.running_worker import small_geometry
from worker.executor import Pending, StepOutput
from worker.simulate import SimulatedExecutor
from worker.step import CheckedStep


class HeldExecutor(SimulatedExecutor):
    """Its device goes on once `release` is set. `changes`: to the small geometry."""

    def __init__(self, **changes: object) -> None:
        super().__init__(small_geometry(**changes))
        self.launched, self.release = threading.Event(), threading.Event()

    def launch(self, step: CheckedStep) -> Sequence[Pending]:
        pendings = [HeldPending(pending, self.release) for pending in super().launch(step)]
        self.launched.set()
        return pendings


@dataclass
class HeldPending:
    pending: Pending
    release: threading.Event
    inline_ns: int = 0

    def wait(self) -> StepOutput:
        assert self.release.wait(SECONDS)
        return self.pending.wait()
