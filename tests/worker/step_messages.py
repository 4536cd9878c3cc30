"""Steps written by hand, for tests of single rules."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nanoserve.v1 import worker_pb2


def int32(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def int64(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def new_row(
    row: int, request_id: str, tokens: Iterable[int], blocks: Iterable[int] = (), **fields: object
) -> worker_pb2.NewRow:
    tokens = tuple(tokens)
    values: dict[str, object] = {"prompt_len": len(tokens)}
    return worker_pb2.NewRow(
        row=row,
        request_id=request_id,
        token_ids=int32(*tokens),
        block_ids=int32(*blocks),
        **(values | fields),  # type: ignore[arg-type]
    )


def first_step(incarnation: int = 0) -> worker_pb2.Step:
    """Row 3 of request "a" computes its 5 tokens in blocks 7 and 9 and samples a sixth; row 1
    of request "b" has 3 tokens and block 5, and waits. Blocks have 4 slots."""
    return worker_pb2.Step(
        step_id=1,
        incarnation=incarnation,
        new_rows=[new_row(3, "a", range(10, 15), (7, 9)), new_row(1, "b", (20, 21, 22), (5,))],
        rows=int32(3),
        query_lens=int32(5),
        context_lens=int32(5),
        slot_mapping=int64(28, 29, 30, 31, 36),
        samples=b"\1",
    )


def second_step(incarnation: int = 0, **fields: object) -> worker_pb2.Step:
    """After `first_step`: a decode of row 3 and the prompt of row 1. `fields` replace its own."""
    values: dict[str, object] = {
        "step_id": 2,
        "incarnation": incarnation,
        "rows": int32(3, 1),
        "query_lens": int32(1, 3),
        "context_lens": int32(6, 3),
        "slot_mapping": int64(37, 20, 21, 22),
        "samples": b"\1\1",
    }
    return worker_pb2.Step(**(values | fields))  # type: ignore[arg-type]
