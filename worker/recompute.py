"""Steps that compute requests' K/V again from their tokens, into the blocks where it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from nanoserve.v1 import worker_pb2
from worker.geometry import Geometry
from worker.row_history import Context


def recompute(
    geometry: Geometry,
    live: Sequence[Context],
    later: Iterable[worker_pb2.Step],
    incarnation: int,
    last_step: int,
) -> list[worker_pb2.Step]:
    """Steps up to `last_step`, for an empty pool, after which the `live` rows are as they were.

    What a row of a `later` step finds in the pool (a shared prefix) may have been written by a
    request that is gone: it is computed first, from the tokens of the row that finds it, by a
    request that is freed again. Of two that claim a block the earlier is right, so it is
    written last, and after both what live rows hold.
    """
    prefixes = [
        Context(new_row, new_row.tokens_in_pool)
        for step in later
        for new_row in step.new_rows
        if new_row.tokens_in_pool
    ]
    work = _Recompute(geometry)
    for prefix in reversed(prefixes):
        work.compute([prefix])
    work.compute(live)
    steps = work.steps()
    for i, step in enumerate(steps):
        step.incarnation = incarnation
        step.step_id = last_step - len(steps) + 1 + i
    return steps


class _Recompute:
    """Packs chunks into steps as full as may be."""

    def __init__(self, geometry: Geometry) -> None:
        self._block_size = geometry.block_size
        self._max_tokens = geometry.max_step_tokens
        self._steps = [_StepColumns()]
        self._live: list[int] = []

    def steps(self) -> list[worker_pb2.Step]:
        return [step.message() for step in self._steps if not step.is_empty]

    def compute(self, contexts: Sequence[Context]) -> None:
        """All take their rows in one step, in which those of the call before are freed. A row
        does not compute what it shares with one before it: a step writes no slot twice."""
        step = self._next_step()
        step.free_rows, self._live = self._live, [c.new_row.row for c in contexts]
        written: set[int] = set()
        for context in contexts:
            new_row = worker_pb2.NewRow()
            new_row.CopyFrom(context.new_row)
            blocks = np.frombuffer(new_row.block_ids, "<i4")
            new_row.tokens_in_pool = self._shared(context, blocks, written)
            step.new_rows.append(new_row)
            if not written.isdisjoint(blocks.tolist()):
                self._next_step()  # what it reads is to be in the pool
            self._chunks(new_row, blocks, context.tokens_in_pool)
            written.update(blocks[: context.tokens_in_pool // self._block_size].tolist())

    def _shared(self, context: Context, blocks: np.ndarray, written: set[int]) -> int:
        """Tokens in the whole blocks at a context's begin that others have written."""
        whole = min(context.tokens_in_pool, len(context.new_row.token_ids) // 4 - 1)
        count = 0
        for block in blocks[: whole // self._block_size].tolist():
            if block not in written:
                break
            count += 1
        return count * self._block_size

    def _chunks(self, new_row: worker_pb2.NewRow, blocks: np.ndarray, end: int) -> None:
        begin = new_row.tokens_in_pool
        while begin < end:
            step = self._steps[-1]
            count = min(end - begin, self._max_tokens - len(step.slots))
            if not count:
                self._next_step()
                continue
            positions = np.arange(begin, begin + count)
            size = self._block_size
            slots = blocks[positions // size].astype(np.int64) * size + positions % size
            step.add(new_row.row, count, begin + count, slots)
            begin += count

    def _next_step(self) -> _StepColumns:
        if not self._steps[-1].is_empty:
            self._steps.append(_StepColumns())
        return self._steps[-1]


class _StepColumns:
    def __init__(self) -> None:
        self.free_rows: list[int] = []
        self.new_rows: list[worker_pb2.NewRow] = []
        self.slots: list[int] = []
        self._rows: list[int] = []
        self._query_lens: list[int] = []
        self._context_lens: list[int] = []

    @property
    def is_empty(self) -> bool:
        return not (self.free_rows or self.new_rows or self._rows)

    def add(self, row: int, query_len: int, context_len: int, slots: np.ndarray) -> None:
        self._rows.append(row)
        self._query_lens.append(query_len)
        self._context_lens.append(context_len)
        self.slots += slots.tolist()

    def message(self) -> worker_pb2.Step:
        return worker_pb2.Step(
            free_rows=_int32(self.free_rows),
            new_rows=self.new_rows,
            rows=_int32(self._rows),
            query_lens=_int32(self._query_lens),
            context_lens=_int32(self._context_lens),
            slot_mapping=np.array(self.slots, "<i8").tobytes(),
            samples=bytes(len(self._rows)),
        )


def _int32(values: Sequence[int]) -> bytes:
    return np.array(values, "<i4").tobytes()
