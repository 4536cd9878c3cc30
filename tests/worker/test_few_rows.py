"""Steps of few rows: taken as the full check takes them, and left to it when anything is wrong."""

from __future__ import annotations

import random
from dataclasses import fields

import numpy as np
import pytest

from nanoserve.v1 import worker_pb2
from tests.worker.running_worker import small_geometry
from tests.worker.step_messages import first_step, int32, int64, new_row, second_step
from worker.few_rows import MOST_ROWS, admit_few
from worker.ledger import Ledger, RowStates
from worker.refusal import StepRefused
from worker.step import CheckedStep

NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 39, 40, 64, 159, 160, -1, 2**31 - 1, -(2**31))
COLUMNS = (
    *("free_rows", "table_rows", "table_starts", "table_counts", "table_blocks"),
    *("rows", "query_lens", "context_lens"),
)


def fresh_ledger() -> Ledger:
    ledger = Ledger(small_geometry(), check_slots=False)
    ledger._admit(first_step())
    return ledger


def turnover() -> worker_pb2.Step:
    """Row 3 leaves, another request takes it and computes all of its prompt, and row 1 decodes
    beside it."""
    return worker_pb2.Step(
        step_id=2,
        free_rows=int32(3),
        new_rows=[new_row(3, "c", range(6), (8,)), new_row(5, "d", range(3))],
        table_rows=int32(3, 5),
        table_starts=int32(0, 1),
        table_counts=int32(1, 2),
        table_blocks=int32(2, 30, 31),
        rows=int32(3, 1, 5),
        query_lens=int32(6, 3, 2),
        context_lens=int32(6, 3, 2),
        slot_mapping=int64(32, 33, 34, 35, 8, 9, 20, 21, 22, 120, 121),
        samples=b"\1\1\0",
    )


def changed(rng: random.Random) -> worker_pb2.Step:
    """A good step, in most cases with one to three fields replaced by numbers near limits."""
    step = rng.choice((turnover, second_step))()
    for name in rng.sample((*COLUMNS, "slot_mapping", "samples", "new_rows"), rng.randint(0, 3)):
        values = rng.choices(NUMBERS, k=rng.randint(0, 3))
        if name == "samples":
            step.samples = bytes(rng.choices((0, 1, 2), k=len(step.samples)))
        elif name == "slot_mapping":
            slots = np.frombuffer(step.slot_mapping, "<i8").tolist()
            slots[rng.randrange(len(slots))] = rng.choice((*NUMBERS, 2**62, -(2**62)))
            step.slot_mapping = int64(*slots)
        elif name == "new_rows":
            step.new_rows.append(new_row(rng.choice(NUMBERS), "e", values, values))
        else:
            before = np.frombuffer(getattr(step, name), "<i4").tolist() or [0]
            before[rng.randrange(len(before))] = rng.choice(NUMBERS)
            setattr(step, name, int32(*(before if rng.random() < 0.7 else values)))
    return step


def assert_equal_steps(one: CheckedStep, other: CheckedStep) -> None:
    for field in fields(CheckedStep):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(ours, theirs), field.name
        if isinstance(ours, np.ndarray):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), field.name


def assert_equal_books(one: Ledger, other: Ledger) -> None:
    for field in fields(RowStates):
        ours, theirs = getattr(one.states, field.name), getattr(other.states, field.name)
        assert ours.tolist() == theirs.tolist(), field.name
        assert ours.dtype == theirs.dtype
    assert one.request_ids == other.request_ids


def test_whatever_a_step_says_the_books_are_those_of_the_full_check() -> None:
    """3,000 steps near every limit: one that is taken here is one that the full check takes, with
    the same result, and of one that is not the books are as they were."""
    rng, taken = random.Random(0), 0
    for _ in range(3000):
        step, ours, full = changed(rng), fresh_ledger(), fresh_ledger()
        checked = admit_few(ours, step)
        if checked is None:
            assert_equal_books(ours, full)
            continue
        taken += 1
        assert_equal_steps(checked, full._admit(step))
        assert_equal_books(ours, full)
    assert 300 < taken < 2500


@pytest.mark.parametrize("step", [turnover(), second_step()], ids=["turnover", "decode"])
def test_usual_steps_are_taken_without_the_full_check(step: worker_pb2.Step) -> None:
    assert admit_few(fresh_ledger(), step) is not None


def test_a_request_is_computed_in_chunks_and_decodes() -> None:
    ours, full = fresh_ledger(), fresh_ledger()
    for context, length, slots, samples in (
        (4, 4, (32, 33, 34, 35), b"\0"),
        (6, 2, (36, 37), b"\1"),
        (7, 1, (38,), b"\1"),
        (8, 1, (39,), b"\1"),
    ):
        step = worker_pb2.Step(
            step_id=2,
            new_rows=[new_row(2, "c", range(6), (8, 9))] if length == 4 else [],
            rows=int32(2),
            query_lens=int32(length),
            context_lens=int32(context),
            slot_mapping=int64(*slots),
            samples=samples,
        )
        checked = admit_few(ours, step)
        assert checked is not None
        assert_equal_steps(checked, full._admit(step))
        assert_equal_books(ours, full)
    assert ours.states.known_tokens[2] == 9


def decode_of(rows: range) -> worker_pb2.Step:
    ones = int32(*[1] * len(rows))
    return worker_pb2.Step(
        step_id=3,
        rows=int32(*rows),
        query_lens=ones,
        context_lens=ones,
        slot_mapping=int64(*(4 * (row + 1) for row in rows)),
        samples=b"\1" * len(rows),
    )


@pytest.mark.parametrize("count", [MOST_ROWS, MOST_ROWS + 1])
def test_more_rows_are_left_to_the_full_check(count: int) -> None:
    ledger = Ledger(small_geometry(), check_slots=False)
    rows = [new_row(row, f"r{row}", [row], (row + 1,)) for row in range(count)]
    ledger.admit(worker_pb2.Step(step_id=2, new_rows=rows))
    assert (admit_few(ledger, decode_of(range(count))) is None) == (count > MOST_ROWS)


def test_a_refusal_is_the_full_checks_own() -> None:
    ours, full = fresh_ledger(), fresh_ledger()
    bad = second_step(context_lens=int32(7, 3))
    messages = []
    for admit in (ours.admit, full._admit):
        with pytest.raises(StepRefused) as raised:
            admit(bad)
        messages.append((str(raised.value), raised.value.sequence, raised.value.row))
    assert messages[0] == messages[1]
    assert "context_lens[0] is 7" in messages[0][0]


def test_repetitions_and_comparison_with_tables_are_left_to_the_full_check() -> None:
    repeated = second_step(decode_steps=1)
    assert admit_few(fresh_ledger(), repeated) is None
    ledger = Ledger(small_geometry(), check_slots=True)
    assert admit_few(ledger, first_step()) is None
