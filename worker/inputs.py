"""From a step's columns to what one forward reads, on the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from worker.batch import StepBatch
from worker.rows import Rows
from worker.step_inputs import StepInputs


def input_columns(batch: StepBatch, width: int) -> dict[str, np.ndarray]:
    """What `make_inputs` and the sampler want on the device. `width` is that of rows.tokens."""
    row_starts = batch.rows.astype(np.int64) * width
    sample_rows = batch.sample_rows.astype(np.int64)
    return {
        "slots": batch.slots,
        "rows": batch.rows,
        "query_starts": batch.query_starts,
        "context_lens": batch.context_lens,
        "row_starts": row_starts,
        "sample_tokens": batch.sample_tokens,
        "sample_rows": sample_rows,
        "sample_positions": batch.sample_positions,
        "sampled_at": sample_rows * width + batch.sample_positions,
    }


def make_inputs(
    batch: StepBatch, columns: Mapping[str, torch.Tensor], rows: Rows, repetition: int
) -> StepInputs:
    """The inputs of one repetition: each adds a token to every context. Tokens and positions
    are made on the device, where the last repetition's tokens are."""
    context_lens = columns["context_lens"]
    if repetition:
        context_lens = context_lens + repetition
    tokens = batch.slots.shape[1]
    starts = columns["query_starts"]
    if batch.num_decodes == tokens:
        positions = context_lens - 1
        token_at = columns["row_starts"] + positions
    else:
        # A token's position less its index in the step is one value per sequence.
        shifts = context_lens - starts[1:]
        lens = starts.diff()
        index = torch.arange(tokens, dtype=torch.int32, device=starts.device)
        positions = index + shifts.repeat_interleave(lens, output_size=tokens)
        token_at = columns["row_starts"].repeat_interleave(lens, output_size=tokens) + positions
    return StepInputs(
        token_ids=rows.tokens_at(token_at),
        positions=positions,
        slot_mapping=columns["slots"][repetition],
        rows=columns["rows"],
        query_starts=starts,
        context_lens=context_lens,
        block_tables=rows.block_tables,
        sample_tokens=columns["sample_tokens"],
        num_decodes=batch.num_decodes,
        max_query_len=batch.max_query_len,
        max_context_len=batch.max_context_len + repetition,
    )
