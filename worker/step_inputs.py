"""What one forward reads: a step's columns on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Shapes: s sequences, t tokens, m of them sampled after; block_tables has a line for each of
    the worker's R rows. The first `num_decodes` sequences have one query token each."""

    token_ids: torch.Tensor  # [t] int32 or int64
    positions: torch.Tensor  # [t] int32
    slot_mapping: torch.Tensor  # [t] int64
    rows: torch.Tensor  # [s] int32
    context_lens: torch.Tensor  # [s] int32, this step's tokens included
    # [s - num_decodes + 1] int32, from 0 to t - num_decodes: query tokens of those that are none.
    prefill_starts: torch.Tensor
    block_tables: torch.Tensor  # [R, B] int32
    # [m] int64: token index of a sampling sequence's last, in any order; 0 to t - 1 if m is t.
    sample_tokens: torch.Tensor
    num_decodes: int
    max_query_len: int  # of the sequences that are no decodes; 1 if there is none
    max_context_len: int  # upper bound of context_lens
    decode_context: int  # upper bound of the sum of the decodes' context_lens
