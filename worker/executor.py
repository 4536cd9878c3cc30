"""What runs checked steps: the interface that the torch runner and the simulation share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from worker.geometry import Geometry
from worker.step import CheckedStep


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of w of a repetition's samples, as StepResult has them."""

    samples: np.ndarray  # int32 [w]: indices into the tokens, rising
    counts: np.ndarray  # int32 [w], at least 1
    ids: np.ndarray  # int32 [sum of counts]
    values: np.ndarray  # float32 [sum of counts]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one repetition of a step gave. m sequences sampled, in the step's order."""

    tokens: np.ndarray  # int32 [m]
    non_finite: np.ndarray | None  # bool [m], or None if every row's logits were finite
    device_ns: int  # the forward, with sampling where it cannot be told apart
    sample_ns: int
    # How long the device had nothing to do since the end of the repetition before; None if
    # there was none.
    idle_ns: int | None = None
    logprobs: Logprobs | None = None  # None: nobody asked


class Pending(Protocol):
    """One repetition of a step that has been launched."""

    @property
    def inline_ns(self) -> int:
        """Device time that passed inside `launch`, because this CPU is the device."""
        ...

    def wait(self) -> StepOutput:
        """Blocks until the device is done. May be called again and from any thread."""
        ...


class Executor(Protocol):
    """Runs steps strictly in the order of `launch`. Except `geometry`, all is called on one
    thread. An exception from any method is fatal to the worker."""

    @property
    def geometry(self) -> Geometry: ...

    def warm_up(self) -> None:
        """Runs a first forward, so that what cannot work fails before anyone is served."""
        ...

    def launch(self, step: CheckedStep) -> Sequence[Pending]:
        """Starts a step and returns one Pending per repetition, without waiting for the
        device where the device is not this CPU."""
        ...
