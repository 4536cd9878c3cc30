"""The checks of a step, in the order in which a step is applied.

Each check reads the rows as the parts before it leave them: the states are a copy, which
becomes the ledger's only if every check passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from nanoserve.v1 import worker_pb2
from worker.new_rows import NewRows, check_new_row
from worker.refusal import StepRefused
from worker.step import CheckedStep, StepColumns, exclusive_sum, token_positions

if TYPE_CHECKING:
    from worker.ledger import Ledger


_NONE = np.zeros(0, np.int32)
_UNSIGNED = {4: np.uint32, 8: np.uint64}


class StepChecks:
    """One step's checks. Every method raises StepRefused."""

    def __init__(self, ledger: Ledger, columns: StepColumns) -> None:
        self._ledger = ledger
        self._geometry = ledger.geometry
        self._columns = columns
        self._new = NewRows()
        self._append_indices = _NONE
        self._tokens = 0  # of one repetition, once `sequences` has looked
        self.states = ledger.states.copy()
        self.new_request_ids: dict[int, str] = {}

    def free_rows(self) -> None:
        rows = self._columns.free_rows
        if not len(rows):
            return
        self._live_and_unique("free_rows", rows)
        self.states.live[rows] = False

    def new_rows(self, messages: Iterable[worker_pb2.NewRow]) -> None:
        states = self.states
        for message in messages:
            if 0 <= message.row < self._geometry.max_rows and states.live[message.row]:
                self._refuse(
                    f"new_rows: row {message.row} is live already, free it first", row=message.row
                )
            row = check_new_row(message, self._geometry)
            states.live[row.row] = True
            states.tokens_in_pool[row.row] = row.tokens_in_pool
            states.known_tokens[row.row] = len(row.token_ids)
            states.num_blocks[row.row] = len(row.block_ids)
            self.new_request_ids[row.row] = row.request_id
            self._new.add(row)

    def append_blocks(self) -> None:
        columns, states = self._columns, self.states
        rows, counts, blocks = columns.table_rows, columns.table_counts, columns.table_blocks
        if not len(rows) and not len(blocks):
            return
        self._live_and_unique("table_rows", rows)
        if (i := _first(counts < 1)) is not None:
            self._refuse(f"table_counts[{i}] is {counts[i]}, must be at least 1", row=rows[i])
        starts = np.cumsum(counts, dtype=np.int64) - counts
        if (i := _first(columns.table_starts != starts)) is not None:
            self._refuse(
                f"table_starts[{i}] is {columns.table_starts[i]}, must be {starts[i]}, the sum of "
                "the counts before it",
                row=rows[i],
            )
        total = int(starts[-1]) + int(counts[-1]) if len(rows) else 0
        if len(blocks) != total:
            self._refuse(
                f"table_blocks has {len(blocks)} values, must have {total}, the sum of table_counts"
            )
        num_blocks, most = self._geometry.num_blocks, self._geometry.max_blocks_per_row
        if (i := _outside(blocks, 1, num_blocks)) is not None:
            owner = rows[np.searchsorted(starts, i, side="right") - 1]
            self._refuse(
                f"table_blocks[{i}] is {blocks[i]}, must be 1 <= block < {num_blocks}", row=owner
            )
        before = states.num_blocks[rows]
        after = before + counts
        if (i := _first(after > most)) is not None:
            self._refuse(
                f"table_counts[{i}] is {counts[i]}, but the row has {before[i]} blocks of at most "
                f"{most}",
                row=rows[i],
            )
        states.num_blocks[rows] = after
        self._append_indices = np.arange(total, dtype=np.int32) + np.repeat(
            (before - starts).astype(np.int32), counts
        )

    def sequences(self) -> None:
        columns, states = self._columns, self.states
        rows, lens, contexts = columns.rows, columns.query_lens, columns.context_lens
        self._live_and_unique("rows", rows, sequences=True)
        self._lengths()
        in_pool, known = states.tokens_in_pool[rows], states.known_tokens[rows]
        elsewhere = contexts - lens != in_pool
        rewrites = elsewhere
        if np.count_nonzero(elsewhere):
            rewrites = (contexts == in_pool) & (lens == 1)
        if (i := _first(elsewhere & ~rewrites)) is not None:
            self._refuse_sequence(
                i,
                f"context_lens[{i}] is {contexts[i]} with query_lens {lens[i]}, but the row has "
                f"{in_pool[i]} tokens in the pool: must be {in_pool[i] + lens[i]}, or "
                f"{in_pool[i]} with query_lens 1 to rewrite the last slot",
            )
        if (i := _first(contexts > known)) is not None:
            self._refuse_sequence(
                i,
                f"context_lens[{i}] is {contexts[i]}, but only {known[i]} tokens of the row are "
                "known",
            )
        samples = columns.samples.view(bool)  # each is 0 or 1
        overwrites = samples & (contexts != known) & ~(rewrites & (contexts == known - 1))
        if (i := _first(overwrites)) is not None:
            self._refuse_sequence(
                i,
                f"samples[{i}] is 1 with context_lens {contexts[i]}, but {known[i]} tokens of the "
                "row are known: sampling would overwrite one",
            )
        last = contexts + (columns.decode_steps - 1)
        room = states.num_blocks[rows] * self._geometry.block_size
        if (i := _first(last > room)) is not None:
            self._refuse_sequence(
                i,
                f"context_lens[{i}] needs {last[i]} slots, but the row's {room[i]} slots "
                f"({states.num_blocks[rows[i]]} blocks of {self._geometry.block_size}) are fewer: "
                "append blocks first",
            )
        states.tokens_in_pool[rows] = last
        states.known_tokens[rows] = np.maximum(known, last + samples)

    def slots(self) -> None:
        columns, geometry = self._columns, self._geometry
        slots, num_slots = columns.slots, geometry.num_slots
        per_step = self._tokens
        total = per_step * columns.decode_steps
        if len(slots) != total:
            self._refuse(
                f"slot_mapping has {len(slots)} values, must have {total}, one per token of each "
                "repetition"
            )
        low = geometry.block_size
        if (i := _outside(slots, low, num_slots)) is not None:
            self._refuse_token(
                i,
                f"slot_mapping[{i}] is {slots[i]}, must be {low} <= slot < {num_slots} (block 0 "
                "is the scratch block)",
            )
        if (i := _repeated(slots)) is not None:
            self._refuse_token(i, f"slot_mapping[{i}] is {slots[i]}, which this step writes twice")
        if self._ledger.check_slots:
            self._slots_as_tables(slots.reshape(columns.decode_steps, per_step))

    def checked(self, step_id: int) -> CheckedStep:
        columns, new = self._columns, self._new
        block_rows, block_indices, block_ids = _NONE, self._append_indices, columns.table_blocks
        if len(block_ids):
            block_rows = np.repeat(columns.table_rows, columns.table_counts)
        if any(map(len, new.block_ids)):
            block_rows = np.concatenate([new.flat_rows(new.block_ids), block_rows])
            block_indices = np.concatenate([new.flat_indices(new.block_ids), block_indices])
            block_ids = np.concatenate([new.flat(new.block_ids), block_ids])
        return CheckedStep(
            step_id=step_id,
            decode_steps=columns.decode_steps,
            **new.columns(),
            block_rows=block_rows,
            block_indices=block_indices,
            block_ids=block_ids,
            rows=columns.rows,
            query_lens=columns.query_lens,
            context_lens=columns.context_lens,
            slots=columns.slots.reshape(columns.decode_steps, -1),
            sampling=np.flatnonzero(columns.samples),
        )

    def _lengths(self) -> None:
        """Ranges that hold whatever the rows' states are; after them no sum overflows."""
        columns, geometry = self._columns, self._geometry
        k, lens, contexts = columns.decode_steps, columns.query_lens, columns.context_lens
        if not 1 <= k <= geometry.max_decode_steps:
            self._refuse(
                f"decode_steps is {k}, must be 1 <= decode_steps <= {geometry.max_decode_steps}"
            )
        if (i := _first(lens < 1)) is not None:
            self._refuse_sequence(i, f"query_lens[{i}] is {lens[i]}, must be at least 1")
        self._tokens = int(lens.sum(dtype=np.int64))
        tokens = self._tokens * k
        if tokens > geometry.max_step_tokens:
            self._refuse(
                f"query_lens and decode_steps make {tokens} tokens, must be at most "
                f"max_step_tokens {geometry.max_step_tokens}"
            )
        most = geometry.max_model_len - (k - 1)
        if (i := _outside(contexts, 1, most + 1)) is not None:
            self._refuse_sequence(
                i,
                f"context_lens[{i}] is {contexts[i]}, must be 1 <= context_len <= {most} "
                f"(max_model_len {geometry.max_model_len}, decode_steps {k})",
            )
        if (i := _first(columns.samples > 1)) is not None:
            self._refuse_sequence(i, f"samples[{i}] is {columns.samples[i]}, must be 0 or 1")
        if k > 1 and (i := _first(lens != 1)) is not None:
            self._refuse_sequence(
                i, f"query_lens[{i}] is {lens[i]}, must be 1 with decode_steps {k}"
            )
        if k > 1 and (i := _first(columns.samples == 0)) is not None:
            self._refuse_sequence(i, f"samples[{i}] is 0, must be 1 with decode_steps {k}")

    def _slots_as_tables(self, slots: np.ndarray) -> None:
        """Compares every slot with the row's table. The step's blocks are written to the
        tables for it: what a refused step leaves there lies past every num_blocks, or in
        rows that only Reset can follow."""
        checked, size = self.checked(0), self._geometry.block_size
        tables = self._ledger.tables
        tables[checked.block_rows, checked.block_indices] = checked.block_ids
        rows = np.repeat(checked.rows, checked.query_lens)
        first = token_positions(checked.query_lens, checked.context_lens)
        for repetition, row_slots in enumerate(slots):
            positions = first + repetition
            right = tables[rows, positions // size] * np.int64(size) + positions % size
            if (i := _first(row_slots != right)) is not None:
                index = repetition * len(rows) + i
                self._refuse_token(
                    index,
                    f"slot_mapping[{index}] is {row_slots[i]}, but the row's block table puts "
                    f"position {positions[i]} at slot {right[i]}",
                )

    def _live_and_unique(self, name: str, rows: np.ndarray, *, sequences: bool = False) -> None:
        max_rows = self._geometry.max_rows

        def refuse(i: int, text: str) -> NoReturn:
            self._refuse(f"{name}[{i}] is {rows[i]}, {text}", i if sequences else None, rows[i])

        if (i := _outside(rows, 0, max_rows)) is not None:
            refuse(i, f"must be 0 <= row < {max_rows}")
        if (i := _first(~self.states.live[rows])) is not None:
            refuse(i, "which is not live")
        if (i := _repeated(rows)) is not None:
            refuse(i, "which is there twice")

    def _refuse_token(self, index: int, text: str) -> NoReturn:
        """`index` into the flat slot mapping."""
        starts = exclusive_sum(self._columns.query_lens)
        token = index % int(starts[-1])
        self._refuse_sequence(int(np.searchsorted(starts, token, side="right")) - 1, text)

    def _refuse_sequence(self, sequence: int, text: str) -> NoReturn:
        self._refuse(text, sequence, self._columns.rows[sequence])

    def _refuse(
        self, text: str, sequence: int | None = None, row: int | np.integer | None = None
    ) -> NoReturn:
        request_id = ""
        if row is not None and 0 <= row < self._geometry.max_rows:
            held = self.states.live[row] or self._ledger.states.live[row]
            request_id = self.new_request_ids.get(
                int(row), self._ledger.request_ids[row] if held else ""
            )
        raise StepRefused(
            text,
            sequence=sequence,
            row=None if row is None else int(row),
            request_id=request_id,
        )


def _outside(values: np.ndarray, least: int, end: int) -> int | None:
    """The first index whose value, int32 or int64, is not least <= value < end."""
    # Those below `least` wrap around to the largest.
    above = values.view(_UNSIGNED[values.itemsize]) - least
    return _first(above >= end - least)


def _first(bad: np.ndarray) -> int | None:
    """The first index that is true."""
    # Of a few values np.any takes five times as long.
    return int(bad.argmax()) if np.count_nonzero(bad) else None


def _repeated(values: np.ndarray) -> int | None:
    """The first index whose value is at a lower index too."""
    if len(values) < 2:
        return None
    ordered = np.sort(values)
    if not np.count_nonzero(ordered[1:] == ordered[:-1]):
        return None
    seen = np.zeros(len(values), bool)
    seen[np.unique(values, return_index=True)[1]] = True
    return int((~seen).argmax())
