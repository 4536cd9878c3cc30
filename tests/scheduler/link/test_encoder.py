"""A plan's columns as the wire's bytes."""

from __future__ import annotations

import numpy as np

from nanoserve.v1 import worker_pb2
from scheduler.core.penalties import Penalties
from scheduler.core.worker_link import NewRow, StepPlan
from scheduler.link.encoder import encode_step


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def plan(**fields: object) -> StepPlan:
    empty = int32()
    values: dict[str, object] = {
        "step_id": 1,
        "incarnation": 2**64 - 1,
        "free_rows": empty,
        "new_rows": [],
        "table_rows": empty,
        "table_counts": empty,
        "table_blocks": empty,
        "rows": empty,
        "query_lens": empty,
        "context_lens": empty,
        "slot_mapping": np.zeros(0, np.int64),
        "samples": np.zeros(0, bool),
    }
    return StepPlan(**(values | fields))  # type: ignore[arg-type]


def test_an_empty_plan_has_only_its_id_and_incarnation() -> None:
    assert encode_step(plan()) == worker_pb2.Step(step_id=1, incarnation=2**64 - 1)


def test_every_column_is_packed_and_table_starts_are_the_running_sum() -> None:
    new = NewRow(
        row=4,
        request_id="c",
        token_ids=int32(1, 256),
        prompt_len=1,
        block_ids=int32(9),
        temperature=0.5,
        seed=2**64 - 1,
        tokens_in_pool=1,
        trace_parent="00-1-2-01",
        penalties=Penalties(1.5, 0.25, -2.0),
        top_logprobs=0,
    )
    step = encode_step(
        plan(
            free_rows=int32(7),
            new_rows=[new],
            table_rows=int32(1, 2),
            table_counts=int32(3, 1),
            table_blocks=int32(5, 6, 7, 8),
            rows=int32(4, 1),
            query_lens=int32(1, 2),
            context_lens=int32(2, 9),
            slot_mapping=np.array([2**33, 80, 81], np.int64),
            samples=np.array([True, False]),
        )
    )
    assert step.free_rows == b"\7\0\0\0"
    assert np.frombuffer(step.table_rows, "<i4").tolist() == [1, 2]
    assert np.frombuffer(step.table_starts, "<i4").tolist() == [0, 3]
    assert np.frombuffer(step.table_counts, "<i4").tolist() == [3, 1]
    assert np.frombuffer(step.table_blocks, "<i4").tolist() == [5, 6, 7, 8]
    assert np.frombuffer(step.rows, "<i4").tolist() == [4, 1]
    assert np.frombuffer(step.query_lens, "<i4").tolist() == [1, 2]
    assert np.frombuffer(step.context_lens, "<i4").tolist() == [2, 9]
    assert np.frombuffer(step.slot_mapping, "<i8").tolist() == [2**33, 80, 81]
    assert step.samples == b"\1\0"
    assert not step.HasField("decode_steps")
    assert list(step.new_rows) == [
        worker_pb2.NewRow(
            row=4,
            request_id="c",
            token_ids=b"\1\0\0\0\0\1\0\0",
            prompt_len=1,
            tokens_in_pool=1,
            block_ids=b"\x09\0\0\0",
            sampling=worker_pb2.SamplingParams(
                temperature=0.5,
                seed=2**64 - 1,
                repetition_penalty=1.5,
                frequency_penalty=0.25,
                presence_penalty=-2.0,
            ),
            trace_parent="00-1-2-01",
            top_logprobs=0,
        )
    ]


def test_penalties_that_change_nothing_and_log_probabilities_that_nobody_wants_cost_no_byte() -> (
    None
):
    row = NewRow(0, "r", int32(1), 1, int32(), temperature=0.5, seed=3)
    (new,) = encode_step(plan(new_rows=[row], logprob_counts=None)).new_rows
    assert new.sampling == worker_pb2.SamplingParams(temperature=0.5, seed=3)
    assert not new.HasField("top_logprobs")


def test_repetitions_are_told_where_there_are_several() -> None:
    assert encode_step(plan(decode_steps=4)).decode_steps == 4
