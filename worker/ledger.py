"""What the host knows of the rows: enough to check every step before it is run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nanoserve.v1 import worker_pb2
from worker.few_rows import admit_few
from worker.geometry import Geometry
from worker.step import CheckedStep, StepColumns
from worker.step_checks import StepChecks


@dataclass(slots=True)
class RowStates:
    """One value per row. They count what is true once every admitted step has run, so a
    token that a step in flight samples is known here."""

    live: np.ndarray  # bool [max_rows]
    tokens_in_pool: np.ndarray  # int64 [max_rows]
    known_tokens: np.ndarray  # int64 [max_rows], prompt and sampled
    num_blocks: np.ndarray  # int64 [max_rows]

    @staticmethod
    def empty(max_rows: int) -> RowStates:
        return RowStates(
            np.zeros(max_rows, bool), *(np.zeros(max_rows, np.int64) for _ in range(3))
        )

    def copy(self) -> RowStates:
        return RowStates(
            self.live.copy(),
            self.tokens_in_pool.copy(),
            self.known_tokens.copy(),
            self.num_blocks.copy(),
        )


class Ledger:
    """The rows of one incarnation, as the steps admitted so far leave them.

    With `check_slots` every slot of a step is also compared with the one that the row's
    block table gives, which costs a table look-up per token.
    """

    def __init__(self, geometry: Geometry, *, check_slots: bool) -> None:
        self.geometry = geometry
        self.check_slots = check_slots
        self.states = RowStates.empty(geometry.max_rows)
        self.request_ids = [""] * geometry.max_rows
        # int32 [max_rows, max_blocks_per_row]; past a row's num_blocks it means nothing.
        self.tables = np.zeros((geometry.max_rows, geometry.max_blocks_per_row), np.int32)

    @property
    def live_rows(self) -> int:
        return int(self.states.live.sum())

    def admit(self, step: worker_pb2.Step) -> CheckedStep:
        """Checks all of a step and takes it into the books; raises StepRefused, with the
        rows' states as they were, if anything is wrong."""
        return admit_few(self, step) or self._admit(step)

    def _admit(self, step: worker_pb2.Step) -> CheckedStep:
        checks = StepChecks(self, StepColumns.read(step))
        checks.free_rows()
        checks.new_rows(step.new_rows)
        checks.append_blocks()
        checks.sequences()
        checks.slots()
        self.states = checks.states
        for row, request_id in checks.new_request_ids.items():
            self.request_ids[row] = request_id
        return checks.checked(step.step_id)
