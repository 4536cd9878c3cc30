"""What a step changes of the rows, on the device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import kernels
from nanoserve.v1 import worker_pb2
from tests.worker.running_worker import small_geometry
from tests.worker.step_messages import int32, new_row
from worker.ledger import Ledger
from worker.rows import Rows

SEED = 0xFEDC_BA98_7654_3210
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_changes_what_it_names_and_nothing_else(device: str) -> None:
    geometry = small_geometry()
    rows = Rows(geometry, torch.device(device), kernels.ops(device))
    parts = (
        rows.seeds, rows.temperatures, rows.penalties, rows.prompt_lens, rows.tokens,
        rows.block_tables,
    )  # fmt: skip
    for number, part in enumerate(parts):
        part.fill_(number + 5)
    expected = [part.clone() for part in parts]
    settings = worker_pb2.SamplingParams(
        temperature=0.75, seed=SEED, repetition_penalty=1.5, frequency_penalty=-0.5,
        presence_penalty=0.25,
    )  # fmt: skip
    step = worker_pb2.Step(
        step_id=1,
        new_rows=[
            new_row(6, "a", [9, 8, 7], (11,), sampling=settings, prompt_len=2),
            new_row(1, "b", [4], (12, 13)),
        ],
        table_rows=int32(6),
        table_starts=int32(0),
        table_counts=int32(2),
        table_blocks=int32(21, 22),
    )
    columns = rows.changes(Ledger(geometry, check_slots=True).admit(step))
    rows.apply({name: torch.from_numpy(column).to(device) for name, column in columns.items()})
    seeds, temperatures, penalties, prompt_lens, tokens, tables = expected
    seeds[6], seeds[1] = SEED - (1 << 64), 0
    temperatures[6], temperatures[1] = 0.75, 0.0
    penalties[6], penalties[1] = torch.tensor([1.5, -0.5, 0.25]), torch.tensor([1.0, 0.0, 0.0])
    prompt_lens[6], prompt_lens[1] = 2, 1
    tokens[6, :3], tokens[1, :1] = torch.tensor([9, 8, 7]), 4
    tables[6, :3], tables[1, :2] = torch.tensor([11, 21, 22]), torch.tensor([12, 13])
    for part, wanted in zip(parts, expected, strict=True):
        assert torch.equal(part, wanted)


@pytest.mark.parametrize("max_rows", [6, 7, 8])
@pytest.mark.parametrize("max_model_len", [62, 63, 64])
def test_every_part_is_where_kernels_like_it(max_rows: int, max_model_len: int) -> None:
    geometry = replace(small_geometry(), max_rows=max_rows, max_model_len=max_model_len)
    rows = Rows(geometry, torch.device("cpu"), kernels.ops("cpu"))
    parts = (rows.seeds, rows.temperatures, rows.prompt_lens, rows.tokens, rows.block_tables)
    for part in parts:
        assert part.data_ptr() % 16 == 0
        assert not part.any()
    assert rows.penalties.data_ptr() % 16 == 0
    assert rows.penalties.unique(dim=0).tolist() == [[1, 0, 0]], "they change nothing"


def test_a_step_that_changes_no_row_has_no_columns() -> None:
    geometry = small_geometry()
    rows = Rows(geometry, torch.device("cpu"), kernels.ops("cpu"))
    step = worker_pb2.Step(step_id=1)
    assert rows.changes(Ledger(geometry, check_slots=True).admit(step)) == {}
