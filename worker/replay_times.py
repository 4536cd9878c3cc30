"""Device times of recorded steps beside those of the same steps run again."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from nanoserve.v1 import worker_pb2
from worker.step import CheckedStep

_SLOWEST = 5


class ReplayTimes:
    """Columns, a value for each step: forward and sampling, its repetitions added up."""

    def __init__(self) -> None:
        self._ids, self._rows, self._tokens = array("q"), array("q"), array("q")
        self._recorded, self._here = array("q"), array("q")  # ns

    def add(
        self,
        sub_step: int,
        step: CheckedStep,
        recorded: worker_pb2.StepTimes,
        here: worker_pb2.StepTimes,
    ) -> None:
        """In the order of steps and repetitions."""
        if sub_step == 0:
            self._ids.append(step.step_id)
            self._rows.append(len(step.rows))
            self._tokens.append(step.num_tokens * step.decode_steps)
            self._recorded.append(0)
            self._here.append(0)
        self._recorded[-1] += recorded.device + recorded.sample
        self._here[-1] += here.device + here.sample

    def lines(self) -> Iterator[str]:
        """A table; nothing without steps."""
        if not self._ids:
            return
        recorded, here = np.array(self._recorded), np.array(self._here)
        yield f"{'device time':<16}{'recorded':>12}{'this run':>12}{'rows':>7}{'tokens':>8}"
        for name, share in (("median", 50), ("p90", 90)):
            was, now = np.percentile(recorded, share), np.percentile(here, share)
            yield f"{name:<16}{_ms(was)}{_ms(now)}"
        yield f"{'sum':<16}{_ms(recorded.sum())}{_ms(here.sum())}"
        order = np.argsort(np.maximum(recorded, here), kind="stable")[::-1]
        for i in order[:_SLOWEST].tolist():
            yield (
                f"{f'step {self._ids[i]}':<16}{_ms(recorded[i])}{_ms(here[i])}"
                f"{self._rows[i]:>7}{self._tokens[i]:>8}"
            )


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:>9.3f} ms"
