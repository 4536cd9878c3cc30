"""What the device holds of each row: its tokens, its block table, how it samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from kernels import Ops
from worker.geometry import Geometry
from worker.step import CheckedStep


class Rows:
    """R rows and a scratch row, number R, for what pads a batch: its table is the scratch block.

    The input at position p is tokens[row, p]; sampling after a context of c tokens writes
    tokens[row, c]. A freed row keeps what it held until another request takes it."""

    def __init__(self, geometry: Geometry, device: torch.device, ops: Ops) -> None:
        self.scratch = geometry.max_rows
        self.max_model_len = geometry.max_model_len
        rows, width = geometry.max_rows + 1, geometry.max_model_len + 1
        self._ops = ops
        self.tokens = torch.zeros((rows, width), dtype=torch.int32, device=device)
        # Past a row's blocks every entry is a legal id: 0 or one that was there before.
        self.block_tables = torch.zeros(
            (rows, geometry.max_blocks_per_row), dtype=torch.int32, device=device
        )
        self.temperatures = torch.zeros(rows, dtype=torch.float32, device=device)
        self.seeds = torch.zeros(rows, dtype=torch.int64, device=device)  # bits of a uint64
        self._flat_tokens = self.tokens.view(-1)
        self._flat_tables = self.block_tables.view(-1)

    def changes(self, step: CheckedStep) -> dict[str, np.ndarray]:
        """The columns that `apply` wants on the device; none in a steady decode step."""
        columns: dict[str, np.ndarray] = {}
        if len(step.new_rows):
            columns["new_rows"] = step.new_rows.astype(np.int64)
            columns["temperatures"] = step.new_temperatures
            columns["seeds"] = step.new_seeds.view(np.int64)
            columns["token_at"] = self._flat(
                step.token_rows, step.token_positions, self.tokens.shape[1]
            )
            columns["token_ids"] = step.token_ids
        if len(step.block_rows):
            width = self.block_tables.shape[1]
            columns["block_at"] = self._flat(step.block_rows, step.block_indices, width)
            columns["block_ids"] = step.block_ids
        return columns

    def apply(self, columns: Mapping[str, torch.Tensor]) -> None:
        scatter = self._ops.scatter
        if "new_rows" in columns:
            rows = columns["new_rows"]
            scatter(self.temperatures, rows, columns["temperatures"])
            scatter(self.seeds, rows, columns["seeds"])
            scatter(self._flat_tokens, columns["token_at"], columns["token_ids"])
        if "block_at" in columns:
            scatter(self._flat_tables, columns["block_at"], columns["block_ids"])

    @staticmethod
    def _flat(rows: np.ndarray, columns: np.ndarray, width: int) -> np.ndarray:
        return rows.astype(np.int64) * width + columns
