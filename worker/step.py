"""A step as columns: what came over the wire, and what has passed every check.

Shapes: s sequences, t tokens (the sum of query_lens), k decode_steps, m sequences
that sample, n new rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nanoserve.v1 import worker_pb2
from worker.refusal import StepRefused

INT32 = np.dtype("<i4")
INT64 = np.dtype("<i8")
UINT8 = np.dtype("u1")
_EMPTY = {dtype: np.frombuffer(b"", dtype) for dtype in (INT32, INT64, UINT8)}


def read_column(name: str, data: bytes, dtype: np.dtype = INT32) -> np.ndarray:
    """The packed little-endian values of a field, read-only and without a copy."""
    if not data:  # most columns of a steady decode step
        return _EMPTY[dtype]
    if len(data) % dtype.itemsize:
        raise StepRefused(
            f"{name} has {len(data)} bytes, must be a multiple of {dtype.itemsize} ({dtype.name})"
        )
    return np.frombuffer(data, dtype)


@dataclass(frozen=True, slots=True)
class StepColumns:
    """The arrays of a Step, with lengths that fit each other and values unchecked."""

    free_rows: np.ndarray  # int32 [f]
    table_rows: np.ndarray  # int32 [a]
    table_starts: np.ndarray  # int32 [a]
    table_counts: np.ndarray  # int32 [a]
    table_blocks: np.ndarray  # int32 [sum of counts]
    rows: np.ndarray  # int32 [s]
    query_lens: np.ndarray  # int32 [s]
    context_lens: np.ndarray  # int32 [s]
    slots: np.ndarray  # int64 [k * t], flat
    samples: np.ndarray  # uint8 [s]
    decode_steps: int

    @staticmethod
    def read(step: worker_pb2.Step) -> StepColumns:
        """Raises StepRefused for a field whose length fits neither its type nor the others."""
        columns = StepColumns(
            read_column("free_rows", step.free_rows),
            read_column("table_rows", step.table_rows),
            read_column("table_starts", step.table_starts),
            read_column("table_counts", step.table_counts),
            read_column("table_blocks", step.table_blocks),
            read_column("rows", step.rows),
            read_column("query_lens", step.query_lens),
            read_column("context_lens", step.context_lens),
            read_column("slot_mapping", step.slot_mapping, INT64),
            read_column("samples", step.samples, UINT8),
            step.decode_steps if step.HasField("decode_steps") else 1,
        )
        _same_length("table_rows", columns.table_rows, "table_starts", columns.table_starts)
        _same_length("table_rows", columns.table_rows, "table_counts", columns.table_counts)
        _same_length("rows", columns.rows, "query_lens", columns.query_lens)
        _same_length("rows", columns.rows, "context_lens", columns.context_lens)
        _same_length("rows", columns.rows, "samples", columns.samples)
        return columns


def _same_length(name: str, column: np.ndarray, other_name: str, other: np.ndarray) -> None:
    if len(column) != len(other):
        raise StepRefused(
            f"{other_name} has {len(other)} values, must have {len(column)} as {name} has"
        )


@dataclass(frozen=True, slots=True)
class CheckedStep:
    """A step that an executor may run without looking again. Every row, position, block
    and slot in it is a legal address; no address is written twice."""

    step_id: int
    decode_steps: int

    new_rows: np.ndarray  # int32 [n]
    new_prompt_lens: np.ndarray  # int32 [n]
    new_temperatures: np.ndarray  # float32 [n]
    new_seeds: np.ndarray  # uint64 [n]
    new_penalties: np.ndarray  # float32 [n, 3]: repetition, frequency, presence
    new_top_logprobs: np.ndarray  # int32 [n], -1 for a row that wants no log-probabilities

    # The new rows' tokens, flat: tokens[token_rows, token_positions] = token_ids.
    token_rows: np.ndarray  # int32
    token_positions: np.ndarray  # int32
    token_ids: np.ndarray  # int32

    # Blocks of new rows and appended ones, flat: tables[block_rows, block_indices] = block_ids.
    block_rows: np.ndarray  # int32
    block_indices: np.ndarray  # int32
    block_ids: np.ndarray  # int32

    rows: np.ndarray  # int32 [s]
    query_lens: np.ndarray  # int32 [s]
    context_lens: np.ndarray  # int32 [s], of the first repetition
    slots: np.ndarray  # int64 [k, t]
    sampling: np.ndarray  # int64 [m]: the sequences that sample, rising

    @property
    def num_tokens(self) -> int:
        """t: tokens of one repetition."""
        return self.slots.shape[1]


# Penalties that change nothing.
NO_PENALTIES = np.array([1, 0, 0], np.float32)


def has_penalties(penalties: np.ndarray) -> np.ndarray:
    """bool [n] of float32 [n, 3]: which change anything."""
    return (penalties != NO_PENALTIES).any(axis=1)


def exclusive_sum(lens: np.ndarray) -> np.ndarray:
    """int32 [len + 1]: 0 and the running sums."""
    sums = np.zeros(len(lens) + 1, np.int32)
    np.cumsum(lens, out=sums[1:])
    return sums


def token_positions(query_lens: np.ndarray, context_lens: np.ndarray) -> np.ndarray:
    """int32 [t]: positions of the last query_len tokens of each context, in order."""
    ends = np.cumsum(query_lens, dtype=np.int32)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int32) + np.repeat(context_lens - ends, query_lens)
