"""Every step that a scheduler without prefix cache sent, with its times, in a file."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from scheduler.core.worker_link import StepPlan


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """A request that took a row."""

    row: int
    request_id: str
    prompt_len: int
    num_tokens: int  # known at that time; more than the prompt after a preemption


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What a StepPlan (scheduler/core/worker_link.py) holds of rows and blocks."""

    sent: float  # time.monotonic(), seconds, of the scheduler
    answered: float
    free_rows: list[int]
    new_rows: list[RecordedRow]
    table_rows: list[int]
    table_counts: list[int]
    table_blocks: list[int]
    rows: list[int]
    query_lens: list[int]
    context_lens: list[int]
    slot_mapping: list[int]
    samples: list[bool]

    @classmethod
    def of(cls, plan: StepPlan, sent: float, answered: float) -> Self:
        new_rows = [
            RecordedRow(new.row, new.request_id, new.prompt_len, len(new.token_ids))
            for new in plan.new_rows
        ]
        columns = {name: getattr(plan, name).tolist() for name in _COLUMNS}
        return cls(sent=sent, answered=answered, new_rows=new_rows, **columns)


_COLUMNS = (
    *("free_rows", "table_rows", "table_counts", "table_blocks"),
    *("rows", "query_lens", "context_lens", "slot_mapping", "samples"),
)


@dataclass(frozen=True, slots=True)
class Recording:
    num_blocks: int  # scratch block included
    block_size: int
    max_rows: int
    steps: list[RecordedStep]  # answered ones, in order

    def durations(self) -> np.ndarray:
        """Seconds of each step, float64 [steps]: from its sending, or the answer before it
        if that came later, to its answer."""
        sent = np.array([step.sent for step in self.steps])
        answered = np.array([step.answered for step in self.steps])
        before = np.append(-np.inf, answered[:-1])
        return np.asarray(answered - np.maximum(sent, before))

    def save(self, path: Path) -> None:
        values = {name: getattr(self, name) for name in ("num_blocks", "block_size", "max_rows")}
        steps = [_to_json(step) for step in self.steps]
        path.write_bytes(gzip.compress(json.dumps(values | {"steps": steps}).encode()))

    @classmethod
    def load(cls, path: Path) -> Self:
        values = json.loads(gzip.decompress(path.read_bytes()))
        values["steps"] = [_from_json(step) for step in values["steps"]]
        return cls(**values)


def _to_json(step: RecordedStep) -> dict[str, Any]:
    values = {name: getattr(step, name) for name in RecordedStep.__slots__}
    rows = [[getattr(new, name) for name in RecordedRow.__slots__] for new in step.new_rows]
    return values | {"new_rows": rows}


def _from_json(values: dict[str, Any]) -> RecordedStep:
    rows = [RecordedRow(*new) for new in values["new_rows"]]
    return RecordedStep(**values | {"new_rows": rows})
