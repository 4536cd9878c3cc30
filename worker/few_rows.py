"""A step of few rows into the books, in plain integers.

numpy spends a microsecond on each call however short the column, and two or three where a step
comes once in several milliseconds. The rules are those of worker/step_checks.py. Only what is sure
to pass them is taken here; what breaks one, and what is seldom asked for, is left to them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from nanoserve.v1 import worker_pb2
from worker.new_rows import NewRows, check_new_row
from worker.refusal import StepRefused
from worker.step import INT32, INT64, CheckedStep

if TYPE_CHECKING:
    from worker.ledger import Ledger

# Rows that a step frees, adds, extends or computes: with more numpy is faster.
MOST_ROWS = 4
_INT32_BYTES = 4
_NONE = np.zeros(0, np.int32)


class _Unusual(Exception):
    """Not for here."""


def admit_few(ledger: Ledger, step: worker_pb2.Step) -> CheckedStep | None:
    """As Ledger.admit, or None, with the books as they were, for it to look at all of the step."""
    if ledger.check_slots or step.HasField("decode_steps"):
        return None
    if len(step.rows) > MOST_ROWS * _INT32_BYTES or len(step.new_rows) > MOST_ROWS:
        return None
    few = _FewRows(ledger)
    try:
        few.free(_ints(step.free_rows))
        few.add(step)
        few.append(step)
        num_tokens = few.compute(step)
        slots = few.slots(step, num_tokens)
    except (_Unusual, StepRefused):
        return None
    few.enter_books()
    return few.checked(step, slots)


def _usual(condition: bool) -> None:
    if not condition:
        raise _Unusual


def _ints(column: bytes) -> tuple[int, ...]:
    """The values of one for each row."""
    count, rest = divmod(len(column), _INT32_BYTES)
    _usual(not rest and count <= MOST_ROWS)
    return struct.unpack(f"<{count}i", column)


def _rising(column: bytes, dtype: np.dtype, least: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """The values, and the same in order; all of them are least <= value < end."""
    _usual(not len(column) % dtype.itemsize)
    values = np.frombuffer(column, dtype)
    ordered = values.copy()
    ordered.sort()
    _usual(not len(ordered) or (int(ordered[0]) >= least and int(ordered[-1]) < end))
    return values, ordered


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """`parts` behind a first one that is empty."""
    return parts[-1] if len(parts) <= 2 else np.concatenate(parts)


class _Row:
    """A row as the parts of the step so far leave it."""

    __slots__ = ("in_pool", "is_live", "known", "num_blocks", "was_computed")

    def __init__(self, is_live: bool, in_pool: int, known: int, num_blocks: int) -> None:
        self.is_live = is_live
        self.in_pool = in_pool
        self.known = known
        self.num_blocks = num_blocks
        self.was_computed = False


class _FewRows:
    """One step's rows. Every method but the last two raises _Unusual or StepRefused."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._geometry = ledger.geometry
        self._rows: dict[int, _Row] = {}  # those that the step touches
        self._new = NewRows()
        # Row, index of the first, and ids of the blocks that come to it at a time.
        self._blocks: list[tuple[int, int, np.ndarray]] = []
        self._sampling: list[int] = []

    def free(self, rows: tuple[int, ...]) -> None:
        for number in rows:
            self._live(number).is_live = False

    def add(self, step: worker_pb2.Step) -> None:
        for message in step.new_rows:
            row = check_new_row(message, self._geometry)
            _usual(not self._row(row.row).is_live)
            known, num_blocks = len(row.token_ids), len(row.block_ids)
            self._rows[row.row] = _Row(True, row.tokens_in_pool, known, num_blocks)
            self._new.add(row)
            if num_blocks:
                self._blocks.append((row.row, 0, row.block_ids))

    def append(self, step: worker_pb2.Step) -> None:
        rows, counts, starts = map(_ints, (step.table_rows, step.table_counts, step.table_starts))
        _usual(len(rows) == len(counts) == len(starts) == len(set(rows)))
        if not rows and not step.table_blocks:
            return
        blocks, _ = _rising(step.table_blocks, INT32, 1, self._geometry.num_blocks)
        end = 0
        for number, count, start in zip(rows, counts, starts, strict=True):
            row = self._live(number)
            _usual(count > 0 and start == end)
            end += count
            self._blocks.append((number, row.num_blocks, blocks[start:end]))
            row.num_blocks += count
            _usual(row.num_blocks <= self._geometry.max_blocks_per_row)
        _usual(end == len(blocks))

    def compute(self, step: worker_pb2.Step) -> int:
        """The step's tokens."""
        rows, lens, contexts = _ints(step.rows), _ints(step.query_lens), _ints(step.context_lens)
        samples = step.samples
        _usual(len(rows) == len(lens) == len(contexts) == len(samples))
        size, longest = self._geometry.block_size, self._geometry.max_model_len
        for sequence, number in enumerate(rows):
            row, context = self._live(number), contexts[sequence]
            _usual(not row.was_computed and lens[sequence] > 0)
            _usual(context - lens[sequence] == row.in_pool)
            _usual(context <= longest and context <= row.known)
            _usual(context <= row.num_blocks * size)
            if samples[sequence]:
                _usual(samples[sequence] == 1 and context == row.known)
                row.known += 1
                self._sampling.append(sequence)
            row.in_pool, row.was_computed = context, True
        _usual(sum(lens) <= self._geometry.max_step_tokens)
        return sum(lens)

    def slots(self, step: worker_pb2.Step, num_tokens: int) -> np.ndarray:
        """int64 [1, t]"""
        geometry = self._geometry
        slots, ordered = _rising(step.slot_mapping, INT64, geometry.block_size, geometry.num_slots)
        _usual(len(slots) == num_tokens)
        _usual(num_tokens < 2 or not np.count_nonzero(ordered[1:] == ordered[:-1]))
        return slots.reshape(1, -1)

    def enter_books(self) -> None:
        states = self._ledger.states
        for number, row in self._rows.items():
            states.live[number] = row.is_live
            states.tokens_in_pool[number] = row.in_pool
            states.known_tokens[number] = row.known
            states.num_blocks[number] = row.num_blocks
        for number, request_id in zip(self._new.rows, self._new.request_ids, strict=True):
            self._ledger.request_ids[number] = request_id

    def checked(self, step: worker_pb2.Step, slots: np.ndarray) -> CheckedStep:
        return CheckedStep(
            step_id=step.step_id,
            decode_steps=1,
            **self._new.columns(),
            **self._block_columns(),
            rows=np.frombuffer(step.rows, INT32),
            query_lens=np.frombuffer(step.query_lens, INT32),
            context_lens=np.frombuffer(step.context_lens, INT32),
            slots=slots,
            sampling=np.array(self._sampling, np.int64),
        )

    def _block_columns(self) -> dict[str, np.ndarray]:
        rows, indices, ids = [_NONE], [_NONE], [_NONE]
        for number, first, blocks in self._blocks:
            rows.append(np.full(len(blocks), number, np.int32))
            indices.append(np.arange(first, first + len(blocks), dtype=np.int32))
            ids.append(blocks)
        columns = {"block_rows": rows, "block_indices": indices, "block_ids": ids}
        return {name: _joined(parts) for name, parts in columns.items()}

    def _row(self, number: int) -> _Row:
        row = self._rows.get(number)
        if row is None:
            _usual(0 <= number < self._geometry.max_rows)
            states = self._ledger.states
            row = self._rows[number] = _Row(
                bool(states.live[number]),
                int(states.tokens_in_pool[number]),
                int(states.known_tokens[number]),
                int(states.num_blocks[number]),
            )
        return row

    def _live(self, number: int) -> _Row:
        row = self._row(number)
        _usual(row.is_live)
        return row
