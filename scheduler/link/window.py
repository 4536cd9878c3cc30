"""The steps that were sent and are not answered, oldest first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nanoserve.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class SentStep:
    """A step as it went out, kept to be sent again."""

    message: worker_pb2.Step
    sent_ns: int  # time.monotonic_ns()
    logprob_counts: np.ndarray | None  # as in StepPlan


class Window:
    """Belongs to one incarnation; steps are answered in the order they were added."""

    def __init__(self, incarnation: int = 0) -> None:
        self.incarnation = incarnation
        self._steps: deque[SentStep] = deque()
        # Results of the oldest step: those passed on, and those that the open stream brought.
        self._passed_on = self._received = 0

    def __len__(self) -> int:
        return len(self._steps)

    def send_again(self) -> Iterator[worker_pb2.Step]:
        """The steps for another stream, which brings all results of each from the first one on."""
        self._received = 0
        return (sent.message for sent in self._steps)

    def add(self, message: worker_pb2.Step, logprob_counts: np.ndarray | None = None) -> bool:
        """False for a step of another incarnation, which this window does not take."""
        if message.incarnation != self.incarnation:
            return False
        self._steps.append(SentStep(message, time.monotonic_ns(), logprob_counts))
        return True

    def answered(self, step_id: int, sub_step: int) -> tuple[SentStep, int] | None:
        """A result has come. Returns the oldest step, which is taken out with its last result, and
        the ns since it was sent; None if the result was passed on before the stream was cut.
        Raises LookupError if it is not the next of the oldest step."""
        oldest = self._steps[0].message.step_id if self._steps else None
        if oldest != step_id:
            raise LookupError(f"step {step_id} was answered, but the oldest unanswered is {oldest}")
        if sub_step != self._received:
            raise LookupError(
                f"sub_step {sub_step} of step {step_id} was answered, but {self._received} is next"
            )
        self._received += 1
        if self._received <= self._passed_on:
            return None
        self._passed_on = self._received
        sent = self._steps[0]
        if self._received == max(1, sent.message.decode_steps):  # absent is 1
            self._steps.popleft()
            self._passed_on = self._received = 0
        return sent, time.monotonic_ns() - sent.sent_ns
