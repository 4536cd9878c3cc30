"""What the device holds of each row: its tokens, its block table, how it samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from kernels import Ops
from worker.geometry import Geometry
from worker.step import CheckedStep

_ALIGNMENT = 4  # words: what kernels like of a pointer, 16 bytes
_SETTINGS = 7  # words of a row's settings: its seed's two, temperature, penalties, prompt length


class Rows:
    """R rows and a scratch row, number R, for what pads a batch: its table is the scratch block.

    The input at position p is tokens[row, p]; sampling after a context of c tokens writes
    tokens[row, c]. A freed row keeps what it held until another request takes it."""

    def __init__(self, geometry: Geometry, device: torch.device, ops: Ops) -> None:
        self.scratch = geometry.max_rows
        self.max_model_len = geometry.max_model_len
        self._ops = ops
        rows, width, blocks = self.scratch + 1, self.max_model_len + 1, geometry.max_blocks_per_row
        # One tensor holds all, so that whatever a step changes is one launch.
        words, starts = 0, []
        for size in (2 * rows, rows, 3 * rows, rows, rows * width, rows * blocks):
            starts.append(words)
            words += size + -size % _ALIGNMENT
        self._words = torch.zeros(words, dtype=torch.int32, device=device)
        self._seeds_at, self._temperatures_at, self._penalties_at = starts[:3]
        self._prompt_lens_at, self._tokens_at, self._tables_at = starts[3:]
        self.seeds = self._part(self._seeds_at, 2 * rows).view(torch.int64)  # bits of a uint64
        self.temperatures = self._part(self._temperatures_at, rows).view(torch.float32)
        self.penalties = self._part(self._penalties_at, 3 * rows).view(torch.float32).view(rows, 3)
        self.penalties[:, 0] = 1  # repetition, frequency, presence: they change nothing
        self.prompt_lens = self._part(self._prompt_lens_at, rows)
        self.tokens = self._part(self._tokens_at, rows * width).view(rows, width)
        # Past a row's blocks every entry is a legal id: 0 or one that was there before.
        self.block_tables = self._part(self._tables_at, rows * blocks).view(rows, blocks)

    def changes(self, step: CheckedStep) -> dict[str, np.ndarray]:
        """The columns that `apply` wants on the device; none in a steady decode step."""
        new, blocks = len(step.new_rows), len(step.block_rows)
        if not new and not blocks:
            return {}
        tokens = len(step.token_rows) if new else 0
        settings, size = _SETTINGS * new, _SETTINGS * new + tokens + blocks
        changed, changes = np.empty(size, np.int64), np.empty(size, np.int32)
        if new:
            changed[:settings] = self._settings_at(step.new_rows.tolist())
            changes[: 2 * new] = step.new_seeds.view(np.int32)
            changes[2 * new : 3 * new] = step.new_temperatures.view(np.int32)
            changes[3 * new : 6 * new] = step.new_penalties.reshape(-1).view(np.int32)
            changes[6 * new : settings] = step.new_prompt_lens
            part = slice(settings, settings + tokens)
            width = self.tokens.shape[1]
            _place(changed[part], self._tokens_at, step.token_rows, step.token_positions, width)
            changes[part] = step.token_ids
        if blocks:
            part = slice(settings + tokens, size)
            width = self.block_tables.shape[1]
            _place(changed[part], self._tables_at, step.block_rows, step.block_indices, width)
            changes[part] = step.block_ids
        return {"changed": changed, "changes": changes}

    def _settings_at(self, rows: list[int]) -> list[int]:
        """Where the seeds of some rows lie, then their temperatures, penalties and prompt lens."""
        return [
            *(self._seeds_at + 2 * row + i for row in rows for i in range(2)),
            *(self._temperatures_at + row for row in rows),
            *(self._penalties_at + 3 * row + i for row in rows for i in range(3)),
            *(self._prompt_lens_at + row for row in rows),
        ]

    def apply(self, columns: Mapping[str, torch.Tensor]) -> None:
        if "changes" in columns:
            self._ops.scatter(self._words, columns["changed"], columns["changes"])

    def _part(self, start: int, size: int) -> torch.Tensor:
        return self._words[start : start + size]


def _place(out: np.ndarray, start: int, rows: np.ndarray, columns: np.ndarray, width: int) -> None:
    """Writes int64 places in the words: of the columns of rows of `width` that begin at `start`."""
    np.multiply(rows, width, out=out, dtype=np.int64)
    out += columns
    out += start
