"""From logits to tokens, on the device."""

from __future__ import annotations

import torch

from kernels import Ops
from worker.rows import Rows


def sample(
    ops: Ops,
    rows: Rows,
    logits: torch.Tensor,
    sample_rows: torch.Tensor,
    positions: torch.Tensor,
    token_at: torch.Tensor,
) -> torch.Tensor:
    """Draws a token for each line of logits [m, vocab] and writes it into its row.

    `sample_rows` [m] int64, `positions` [m] int32 (where the token goes), `token_at` [m] int64
    (the same as flat indices of rows.tokens). Returns int32 [m]: the token, or -1 for a row
    whose logits were not finite, which gets token 0.
    """
    temperatures = rows.temperatures.index_select(0, sample_rows)
    seeds = rows.seeds.index_select(0, sample_rows)
    ids, non_finite = ops.sample(logits, temperatures, seeds, positions)
    rows.write_tokens(token_at, ids)
    return ids - non_finite.int()
