"""The order in which a step's sequences reach the kernels."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nanoserve.v1 import worker_pb2
from tests.worker.running_worker import small_geometry
from tests.worker.step_messages import first_step, int32, int64, new_row, second_step
from worker.batch import StepBatch
from worker.ledger import Ledger


def test_sequences_with_one_token_come_first_and_results_keep_the_steps_order() -> None:
    ledger = Ledger(small_geometry(), check_slots=True)
    ledger.admit(first_step())
    step = second_step(
        new_rows=[new_row(5, "c", [30], (6,)), new_row(6, "d", [40, 41], (8,))],
        rows=int32(1, 3, 6, 5),
        query_lens=int32(3, 1, 2, 1),
        context_lens=int32(3, 6, 2, 1),
        slot_mapping=int64(20, 21, 22, 37, 32, 33, 24),
        samples=b"\1\1\0\1",
    )
    batch = StepBatch.of(ledger.admit(step))
    assert batch.rows.tolist() == [3, 5, 1, 6]
    assert batch.num_decodes == 2
    assert batch.query_starts.tolist() == [0, 1, 2, 5, 7]
    assert batch.context_lens.tolist() == [6, 1, 3, 2]
    assert batch.slots.tolist() == [[37, 24, 20, 21, 22, 32, 33]]
    assert (batch.max_query_len, batch.max_context_len, batch.decode_context) == (3, 6, 7)
    assert batch.sample_rows.tolist() == [1, 3, 5]
    assert batch.sample_positions.tolist() == [3, 6, 1]
    assert batch.sample_tokens.tolist() == [4, 0, 1]


def test_a_step_in_order_is_left_as_it_is() -> None:
    ledger = Ledger(small_geometry(), check_slots=True)
    ledger.admit(first_step())
    checked = ledger.admit(second_step())
    batch = StepBatch.of(checked)
    assert batch.slots is checked.slots
    assert batch.sample_tokens.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("length", "samples", "tokens", "decodes"),
    [(5, b"\1", [4], 0), (3, b"\0", [], 0), (1, b"\1", [0], 1)],
    ids=["prompt", "chunk", "decode"],
)
def test_a_sequence_alone_is_as_one_of_many(
    length: int, samples: bytes, tokens: list[int], decodes: int
) -> None:
    ledger = Ledger(small_geometry(), check_slots=True)
    step, slots = first_step(), (28, 29, 30, 31, 36)
    if decodes:
        ledger.admit(step)
        step, slots = worker_pb2.Step(step_id=2, rows=int32(3)), (37,)
    context = 6 if decodes else length
    step.query_lens, step.context_lens = int32(length), int32(context)
    step.slot_mapping, step.samples = int64(*slots[:length]), samples
    checked = ledger.admit(step)
    alone, general = StepBatch.of(checked), StepBatch._of_any(checked)
    for field in dataclasses.fields(StepBatch):
        ours, others = getattr(alone, field.name), getattr(general, field.name)
        assert np.array_equal(ours, others), field.name
        if isinstance(ours, np.ndarray):
            assert (ours.dtype, ours.shape) == (others.dtype, others.shape), field.name
    assert (alone.sample_tokens.tolist(), alone.num_decodes) == (tokens, decodes)
    assert (alone.max_query_len, alone.max_context_len) == (length, context)


def test_a_step_without_sequences_has_no_tokens() -> None:
    ledger = Ledger(small_geometry(), check_slots=True)
    ledger.admit(first_step())
    empty = {"rows": b"", "query_lens": b"", "context_lens": b"", "slot_mapping": b""}
    batch = StepBatch.of(ledger.admit(second_step(samples=b"", free_rows=int32(1), **empty)))
    assert batch.slots.shape == (1, 0)
    assert batch.query_starts.tolist() == [0]
    assert np.array_equal(batch.sample_tokens, np.zeros(0))
