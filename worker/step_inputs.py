"""What one forward reads: a step's columns on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Shapes: t tokens, m of them sampled after; block_tables has a line for each of the worker's R
    rows. First come n decodes, with one token each, then p prompt chunks. What pads may make t, n
    and p larger: decodes of a negative context length, which have no token, chunks of no tokens,
    and tokens after the last start, of no sequence."""

    token_ids: torch.Tensor  # [t] int32 or int64
    positions: torch.Tensor  # [t] int32
    slot_mapping: torch.Tensor  # [t] int64
    decode_rows: torch.Tensor  # [n] int32
    decode_context_lens: torch.Tensor  # [n] int32, this step's token included
    prefill_rows: torch.Tensor  # [p] int32
    prefill_context_lens: torch.Tensor  # [p] int32, this step's tokens included
    prefill_starts: torch.Tensor  # [p + 1] int32: a chunk's first token, from the decodes' count on
    block_tables: torch.Tensor  # [R, B] int32
    # [m] int64: token index of a sampling sequence's last, in any order; 0 to t - 1 if m is t.
    sample_tokens: torch.Tensor
    max_context_len: int  # upper bound of the context lengths
    decode_context: int  # upper bound of the sum of the decodes' context lengths
    # Where decodes attend while chunks do; None: before them, which costs fewer launches.
    decode_stream: torch.cuda.Stream | None = None
