"""From logits to tokens, on the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernels import Ops
from worker.draw_extras import DrawExtras
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


def sample_extras(
    ops: Ops,
    rows: Rows,
    extras: DrawExtras,
    logits: torch.Tensor,
    sampled: torch.Tensor,
    columns: Mapping[str, torch.Tensor],
    repetition: int,
) -> torch.Tensor | None:
    """After `sample` of all lines of logits [m, vocab], which gave `sampled`: draws again for the
    lines with penalties, in its place and the rows'. The logits stay as they are.

    `columns` are those of `extras` on the device. Returns the log-probabilities that are wanted, as
    `kernels.reference.top_logprobs`; None if none are.
    """
    if len(extras.penalized):
        lines, some_rows = columns["penalized"], columns["penalized_rows"]
        positions = columns["penalized_positions"][repetition]
        scores = ops.penalize(
            logits, lines, some_rows, positions, rows.tokens, rows.prompt_lens, rows.penalties,
            max_position=extras.max_position + repetition,
        )  # fmt: skip
        ops.scatter(sampled, lines, sample(ops, rows, scores, some_rows, positions))
    if not len(extras.logged):
        return None
    return ops.top_logprobs(logits, columns["logged"], sampled, extras.top_logprobs)
