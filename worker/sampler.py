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
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draws a token for each line of logits [m, vocab] and writes it into its row.

    `sample_rows` and `positions` [m] int32: whose token it is and where it goes. Returns int32 [m],
    `out` where it is given: the token, or -1 for a row whose logits were not finite, which gets
    token 0.
    """
    return ops.sample(
        logits, sample_rows, positions, rows.temperatures, rows.seeds, rows.tokens, out
    )
