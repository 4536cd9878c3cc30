"""What some draws of a step get beyond a token of the model's own logits: penalties before,
log-probabilities after."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worker.batch import StepBatch
from worker.step import NO_PENALTIES, CheckedStep

_NO_PENALTIES = NO_PENALTIES.tolist()


@dataclass(frozen=True, slots=True)
class DrawExtras:
    """Indices into a step's draws, rising: p have penalties, w have log-probabilities."""

    penalized: np.ndarray  # int64 [p]
    logged: np.ndarray  # int64 [w]
    logprob_counts: np.ndarray  # int32 [w], the sampled token's own among them
    max_position: int  # upper bound of where the penalized draws of the first repetition go

    @property
    def top_logprobs(self) -> int:
        """The most that any of them wants beside its own."""
        return int(self.logprob_counts.max()) - 1

    def columns(self, batch: StepBatch) -> dict[str, np.ndarray]:
        """What `worker.sampler.sample_extras` wants on the device."""
        columns: dict[str, np.ndarray] = {}
        if len(self.penalized):
            added = np.arange(len(batch.slots), dtype=np.int32)[:, None]
            columns["penalized"] = self.penalized
            columns["penalized_rows"] = batch.sample_rows[self.penalized]
            columns["penalized_positions"] = batch.sample_positions[self.penalized] + added
        if len(self.logged):
            columns["logged"] = self.logged
        return columns


class RowExtras:
    """Which rows have penalties or log-probabilities, on the host, as the steps launched so far
    leave them. A freed row keeps what it had until another request takes it."""

    def __init__(self, max_rows: int) -> None:
        self._penalized = np.zeros(max_rows, bool)
        self._logprob_counts = np.zeros(max_rows, np.int32)
        self._any = np.zeros(max_rows, bool)

    def apply(self, step: CheckedStep) -> None:
        columns = (step.new_rows, step.new_penalties, step.new_top_logprobs)
        for row, penalties, top in zip(*(column.tolist() for column in columns), strict=True):
            self._penalized[row] = penalties != _NO_PENALTIES
            self._logprob_counts[row] = top + 1
            self._any[row] = penalties != _NO_PENALTIES or top >= 0

    def of(self, batch: StepBatch) -> DrawExtras | None:
        """Those of a step's draws; None if there are none."""
        rows = batch.sample_rows
        if not np.count_nonzero(self._any[rows]):
            return None
        penalized = np.flatnonzero(self._penalized[rows])
        counts = self._logprob_counts[rows]
        logged = np.flatnonzero(counts)
        positions = batch.sample_positions[penalized]
        return DrawExtras(penalized, logged, counts[logged], int(positions.max(initial=0)))
