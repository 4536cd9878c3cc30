"""What every row holds once a step has run: tokens with their values, table, tokens in the pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nanoserve.v1 import worker_pb2
from worker.geometry import Geometry
from worker.step import CheckedStep


@dataclass(frozen=True, slots=True)
class Context:
    """A request with its first `tokens_in_pool` tokens in the pool."""

    new_row: worker_pb2.NewRow  # all of its tokens and blocks, and how it samples
    tokens_in_pool: int


class RowHistory:
    """The rows of an incarnation after its steps so far, whose results are known.

    Memory grows with what rows really hold, up to max_rows * max_model_len * 4 bytes.
    """

    def __init__(self, geometry: Geometry) -> None:
        rows = geometry.max_rows
        self._requests: dict[int, worker_pb2.NewRow] = {}  # by row, without tokens and blocks
        self._tokens = np.zeros((rows, geometry.max_model_len + 1), np.int32)
        self._tables = np.zeros((rows, geometry.max_blocks_per_row), np.int32)
        self._known, self._num_blocks, self._in_pool = (np.zeros(rows, np.int64) for _ in range(3))

    def apply(
        self,
        step: worker_pb2.Step,
        checked: CheckedStep,
        results: Iterable[worker_pb2.StepResult],
    ) -> None:
        """The next step, with a result for each repetition."""
        for row in np.frombuffer(step.free_rows, "<i4").tolist():
            del self._requests[row]
        for new_row in step.new_rows:
            self._requests[new_row.row] = _without_columns(new_row)
            self._known[new_row.row] = len(new_row.token_ids) // 4
            self._num_blocks[new_row.row] = 0
            self._in_pool[new_row.row] = new_row.tokens_in_pool
        if len(checked.token_rows):
            self._tokens[checked.token_rows, checked.token_positions] = checked.token_ids
        if len(checked.block_rows):
            self._tables[checked.block_rows, checked.block_indices] = checked.block_ids
            np.maximum.at(self._num_blocks, checked.block_rows, checked.block_indices + 1)
        rows, context_lens = checked.rows, checked.context_lens
        self._in_pool[rows] = context_lens + (checked.decode_steps - 1)
        rows, positions = rows[checked.sampling], context_lens[checked.sampling]
        for result in results:
            self._tokens[rows, positions] = np.frombuffer(result.tokens, "<i4")
            positions = positions + 1
            self._known[rows] = positions

    def contexts(self) -> list[Context]:
        """The live rows, in the order in which they came."""
        found = []
        for row, request in self._requests.items():
            new_row = worker_pb2.NewRow()
            new_row.CopyFrom(request)
            # A last token that was sampled at max_model_len is never computed.
            known = min(self._known[row], self._tokens.shape[1] - 1)
            new_row.token_ids = self._tokens[row, :known].tobytes()
            new_row.block_ids = self._tables[row, : self._num_blocks[row]].tobytes()
            new_row.tokens_in_pool = 0
            found.append(Context(new_row, int(self._in_pool[row])))
        return found


def _without_columns(new_row: worker_pb2.NewRow) -> worker_pb2.NewRow:
    """Through bytes, because a copy whose fields are cleared still holds their memory."""
    kept = worker_pb2.NewRow()
    kept.CopyFrom(new_row)
    kept.ClearField("token_ids")
    kept.ClearField("block_ids")
    return worker_pb2.NewRow.FromString(kept.SerializeToString())
