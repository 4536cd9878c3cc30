"""From a step's columns to what one forward reads, on the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from kernels import Ops
from worker.batch import StepBatch
from worker.rows import Rows
from worker.step_inputs import StepInputs


def input_columns(batch: StepBatch) -> dict[str, np.ndarray]:
    """What `make_inputs` and the sampler want on the device; each of the k repetitions adds a
    token to every context."""
    added = np.arange(len(batch.slots), dtype=np.int32)[:, None]
    return {
        "slots": batch.slots,
        "rows": batch.rows,
        "query_starts": batch.query_starts,
        "context_lens": batch.context_lens + added,
        "sample_tokens": batch.sample_tokens,
        "sample_rows": batch.sample_rows,
        "sample_positions": batch.sample_positions + added,
    }


def make_inputs(
    batch: StepBatch, columns: Mapping[str, torch.Tensor], rows: Rows, ops: Ops, repetition: int
) -> StepInputs:
    """The inputs of one repetition. Tokens and positions are made on the device, where the last
    repetition's tokens are."""
    tokens, decodes = batch.slots.shape[1], batch.num_decodes
    step_rows, starts = columns["rows"], columns["query_starts"]
    context_lens = columns["context_lens"][repetition]
    token_ids, positions = ops.step_tokens(
        rows.tokens, step_rows, starts, context_lens, tokens, batch.max_query_len
    )
    return StepInputs(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=columns["slots"][repetition],
        decode_rows=step_rows[:decodes],
        decode_context_lens=context_lens[:decodes],
        prefill_rows=step_rows[decodes:],
        prefill_context_lens=context_lens[decodes:],
        prefill_starts=starts[decodes:],
        block_tables=rows.block_tables,
        sample_tokens=columns["sample_tokens"],
        max_context_len=batch.max_context_len + repetition,
        decode_context=batch.decode_context + repetition * decodes,
    )
