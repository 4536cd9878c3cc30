"""From the engine's plan to the wire's Step: columns become bytes, no loop over rows."""

from __future__ import annotations

import numpy as np

from nanoserve.v1 import worker_pb2
from scheduler.core.worker_link import NewRow, StepPlan

_INT32, _INT64, _UINT8 = np.dtype("<i4"), np.dtype("<i8"), np.dtype("u1")


def encode_step(plan: StepPlan) -> worker_pb2.Step:
    """Step of worker.proto. Loops over new rows only, which are rare."""
    counts = plan.table_counts
    return worker_pb2.Step(
        step_id=plan.step_id,
        incarnation=plan.incarnation,
        free_rows=_int32(plan.free_rows),
        new_rows=[_new_row(row) for row in plan.new_rows],
        table_rows=_int32(plan.table_rows),
        table_starts=_int32(np.cumsum(counts) - counts) if len(counts) else b"",
        table_counts=_int32(counts),
        table_blocks=_int32(plan.table_blocks),
        rows=_int32(plan.rows),
        query_lens=_int32(plan.query_lens),
        context_lens=_int32(plan.context_lens),
        slot_mapping=plan.slot_mapping.astype(_INT64, copy=False).tobytes(),
        samples=plan.samples.astype(_UINT8, copy=False).tobytes(),
        decode_steps=plan.decode_steps if plan.decode_steps > 1 else None,
    )


def _int32(column: np.ndarray) -> bytes:
    return column.astype(_INT32, copy=False).tobytes()


def _sampling(row: NewRow) -> worker_pb2.SamplingParams:
    penalties = row.penalties
    return worker_pb2.SamplingParams(
        temperature=row.temperature,
        seed=row.seed,
        repetition_penalty=penalties.repetition if penalties.repetition != 1 else None,
        presence_penalty=penalties.presence,
        frequency_penalty=penalties.frequency,
    )


def _new_row(row: NewRow) -> worker_pb2.NewRow:
    return worker_pb2.NewRow(
        row=row.row,
        request_id=row.request_id,
        token_ids=_int32(row.token_ids),
        prompt_len=row.prompt_len,
        tokens_in_pool=row.tokens_in_pool,
        block_ids=_int32(row.block_ids),
        sampling=_sampling(row),
        trace_parent=row.trace_parent,
        top_logprobs=row.top_logprobs,
    )
