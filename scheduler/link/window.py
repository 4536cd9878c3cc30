"""The steps that were sent and are not answered, oldest first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from nanoserve.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class SentStep:
    """A step as it went out, kept to be sent again."""

    message: worker_pb2.Step
    sent_ns: int  # time.monotonic_ns()


class Window:
    """Belongs to one incarnation; steps are answered in the order they were added."""

    def __init__(self, incarnation: int = 0) -> None:
        self.incarnation = incarnation
        self._steps: deque[SentStep] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[worker_pb2.Step]:
        return (sent.message for sent in self._steps)

    def add(self, message: worker_pb2.Step) -> bool:
        """False for a step of another incarnation, which this window does not take."""
        if message.incarnation != self.incarnation:
            return False
        self._steps.append(SentStep(message, time.monotonic_ns()))
        return True

    def answered(self, step_id: int) -> tuple[worker_pb2.Step, int]:
        """Takes the oldest step out and returns it with its round trip in ns. Raises
        LookupError if that is not `step_id`."""
        oldest = self._steps[0].message.step_id if self._steps else None
        if oldest != step_id:
            raise LookupError(f"step {step_id} was answered, but the oldest unanswered is {oldest}")
        sent = self._steps.popleft()
        return sent.message, time.monotonic_ns() - sent.sent_ns
