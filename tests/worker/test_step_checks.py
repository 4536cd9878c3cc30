"""Every rule of a Step, each broken alone: the message names field, value and limit."""

from __future__ import annotations

import random

import numpy as np
import pytest

from nanoserve.v1 import worker_pb2
from tests.worker.running_worker import small_geometry
from tests.worker.step_messages import first_step, int32, int64, new_row, second_step
from worker.ledger import Ledger
from worker.refusal import StepRefused
from worker.step import token_positions

A = "row 3, request 'a'"
B = "row 1, request 'b'"


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(small_geometry(), check_slots=True)
    ledger.admit(first_step())
    return ledger


def refusal_of(ledger: Ledger, step: worker_pb2.Step) -> StepRefused:
    with pytest.raises(StepRefused) as raised:
        ledger.admit(step)
    assert raised.value.reason == worker_pb2.REFUSAL_REASON_BAD_STEP
    return raised.value


LENGTH_RULES = {
    "free_rows": (
        {"free_rows": b"\1\0\0"},
        "free_rows has 3 bytes, must be a multiple of 4 (int32)",
    ),
    "slot_mapping": (
        {"slot_mapping": int64(1) + b"\0" * 4},
        "slot_mapping has 12 bytes, must be a multiple of 8 (int64)",
    ),
    "query_lens": ({"query_lens": int32(1)}, "query_lens has 1 values, must have 2 as rows has"),
    "context_lens": (
        {"context_lens": int32(6, 3, 1)},
        "context_lens has 3 values, must have 2 as rows has",
    ),
    "samples": ({"samples": b"\1"}, "samples has 1 values, must have 2 as rows has"),
    "table_starts": (
        {"table_rows": int32(3), "table_counts": int32(1), "table_blocks": int32(4)},
        "table_starts has 0 values, must have 1 as table_rows has",
    ),
    "table_counts": (
        {"table_rows": int32(3), "table_starts": int32(0), "table_blocks": int32(4)},
        "table_counts has 0 values, must have 1 as table_rows has",
    ),
    "few slots": (
        {"slot_mapping": int64(37, 20, 21)},
        "slot_mapping has 3 values, must have 4, one per token of each repetition",
    ),
    "decode_steps 0": (
        {"decode_steps": 0},
        "decode_steps is 0, must be 1 <= decode_steps <= 4",
    ),
    "decode_steps 5": (
        {"decode_steps": 5},
        "decode_steps is 5, must be 1 <= decode_steps <= 4",
    ),
    "too many tokens": (
        {"query_lens": int32(1, 64)},
        "query_lens and decode_steps make 65 tokens, must be at most max_step_tokens 64",
    ),
}


@pytest.mark.parametrize("rule", LENGTH_RULES)
def test_a_step_whose_lengths_do_not_fit_is_refused(ledger: Ledger, rule: str) -> None:
    fields, message = LENGTH_RULES[rule]
    refusal = refusal_of(ledger, second_step(**fields))
    assert (str(refusal), refusal.sequence, refusal.row) == (message, None, None)


# fields -> (message, sequence, row)
SEQUENCE_RULES: dict[str, tuple[dict[str, object], str, int, int]] = {
    "row below 0": (
        {"rows": int32(3, -1)},
        "rows[1] is -1, must be 0 <= row < 8; sequence 1, row -1",
        1,
        -1,
    ),
    "row beyond the last": (
        {"rows": int32(8, 1)},
        "rows[0] is 8, must be 0 <= row < 8; sequence 0, row 8",
        0,
        8,
    ),
    "row not live": (
        {"rows": int32(3, 2)},
        "rows[1] is 2, which is not live; sequence 1, row 2",
        1,
        2,
    ),
    "row freed by this step": (
        {"free_rows": int32(1)},
        f"rows[1] is 1, which is not live; sequence 1, {B}",
        1,
        1,
    ),
    "row twice": (
        {"rows": int32(3, 3)},
        f"rows[1] is 3, which is there twice; sequence 1, {A}",
        1,
        3,
    ),
    "no query token": (
        {"query_lens": int32(1, 0)},
        f"query_lens[1] is 0, must be at least 1; sequence 1, {B}",
        1,
        1,
    ),
    "context_len 0": (
        {"context_lens": int32(0, 3)},
        "context_lens[0] is 0, must be 1 <= context_len <= 64 (max_model_len 64, decode_steps 1); "
        f"sequence 0, {A}",
        0,
        3,
    ),
    "context_len beyond the model": (
        {"context_lens": int32(6, 65)},
        "context_lens[1] is 65, must be 1 <= context_len <= 64 (max_model_len 64, decode_steps 1); "
        f"sequence 1, {B}",
        1,
        1,
    ),
    "a gap in the pool": (
        {"context_lens": int32(7, 3)},
        "context_lens[0] is 7 with query_lens 1, but the row has 5 tokens in the pool: must be 6, "
        f"or 5 with query_lens 1 to rewrite the last slot; sequence 0, {A}",
        0,
        3,
    ),
    "tokens in the pool again": (
        {"context_lens": int32(4, 3)},
        "context_lens[0] is 4 with query_lens 1, but the row has 5 tokens in the pool: must be 6, "
        f"or 5 with query_lens 1 to rewrite the last slot; sequence 0, {A}",
        0,
        3,
    ),
    "a token that nobody knows": (
        {"query_lens": int32(2, 3), "context_lens": int32(7, 3)},
        f"context_lens[0] is 7, but only 6 tokens of the row are known; sequence 0, {A}",
        0,
        3,
    ),
    "samples neither 0 nor 1": (
        {"samples": b"\1\2"},
        f"samples[1] is 2, must be 0 or 1; sequence 1, {B}",
        1,
        1,
    ),
    "sampling in the middle of a prompt": (
        {"query_lens": int32(1, 2), "context_lens": int32(6, 2)},
        "samples[1] is 1 with context_lens 2, but 3 tokens of the row are known: sampling would "
        f"overwrite one; sequence 1, {B}",
        1,
        1,
    ),
    "chunk in a repeated decode": (
        {"decode_steps": 2},
        f"query_lens[1] is 3, must be 1 with decode_steps 2; sequence 1, {B}",
        1,
        1,
    ),
    "no sampling in a repeated decode": (
        {
            "decode_steps": 2,
            "query_lens": int32(1, 1),
            "context_lens": int32(6, 1),
            "samples": b"\1\0",
        },
        f"samples[1] is 0, must be 1 with decode_steps 2; sequence 1, {B}",
        1,
        1,
    ),
    "too few blocks for all repetitions": (
        {
            "decode_steps": 4,
            "rows": int32(3),
            "query_lens": int32(1),
            "context_lens": int32(6),
            "samples": b"\1",
            "slot_mapping": int64(37, 38, 39, 40),
        },
        "context_lens[0] needs 9 slots, but the row's 8 slots (2 blocks of 4) are fewer: append "
        f"blocks first; sequence 0, {A}",
        0,
        3,
    ),
    "slot in the scratch block": (
        {"slot_mapping": int64(37, 20, 3, 22)},
        "slot_mapping[2] is 3, must be 4 <= slot < 160 (block 0 is the scratch block); "
        f"sequence 1, {B}",
        1,
        1,
    ),
    "slot beyond the pool": (
        {"slot_mapping": int64(160, 20, 21, 22)},
        "slot_mapping[0] is 160, must be 4 <= slot < 160 (block 0 is the scratch block); "
        f"sequence 0, {A}",
        0,
        3,
    ),
    "negative slot": (
        {"slot_mapping": int64(37, 20, 21, -1)},
        "slot_mapping[3] is -1, must be 4 <= slot < 160 (block 0 is the scratch block); "
        f"sequence 1, {B}",
        1,
        1,
    ),
    "slot twice": (
        {"slot_mapping": int64(20, 20, 21, 22)},
        f"slot_mapping[1] is 20, which this step writes twice; sequence 1, {B}",
        1,
        1,
    ),
    "slot of another block": (
        {"slot_mapping": int64(38, 20, 21, 22)},
        "slot_mapping[0] is 38, but the row's block table puts position 5 at slot 37; "
        f"sequence 0, {A}",
        0,
        3,
    ),
}


@pytest.mark.parametrize("rule", SEQUENCE_RULES)
def test_a_sequence_that_breaks_a_rule_is_named(ledger: Ledger, rule: str) -> None:
    fields, message, sequence, row = SEQUENCE_RULES[rule]
    refusal = refusal_of(ledger, second_step(**fields))
    assert (str(refusal), refusal.sequence, refusal.row) == (message, sequence, row)
    assert refusal.request_id == {3: "a", 1: "b"}.get(row, "")


def appended(**fields: object) -> dict[str, object]:
    return {
        "table_rows": int32(3, 1),
        "table_starts": int32(0, 1),
        "table_counts": int32(1, 2),
        "table_blocks": int32(10, 11, 12),
    } | fields


TABLE_RULES = {
    "free of a row that is not live": (
        {"free_rows": int32(2)},
        "free_rows[0] is 2, which is not live; row 2",
    ),
    "free twice": ({"free_rows": int32(1, 1)}, f"free_rows[1] is 1, which is there twice; {B}"),
    "free beyond the last": (
        {"free_rows": int32(8)},
        "free_rows[0] is 8, must be 0 <= row < 8; row 8",
    ),
    "append to a row that is not live": (
        appended(table_rows=int32(3, 2)),
        "table_rows[1] is 2, which is not live; row 2",
    ),
    "append twice": (
        appended(table_rows=int32(3, 3)),
        f"table_rows[1] is 3, which is there twice; {A}",
    ),
    "append nothing": (
        appended(table_counts=int32(0, 3)),
        f"table_counts[0] is 0, must be at least 1; {A}",
    ),
    "starts that are no running sum": (
        appended(table_starts=int32(0, 2)),
        f"table_starts[1] is 2, must be 1, the sum of the counts before it; {B}",
    ),
    "blocks left over": (
        appended(table_blocks=int32(10, 11, 12, 13)),
        "table_blocks has 4 values, must have 3, the sum of table_counts",
    ),
    "blocks for nobody": (
        {"table_blocks": int32(10)},
        "table_blocks has 1 values, must have 0, the sum of table_counts",
    ),
    "scratch block": (
        appended(table_blocks=int32(10, 0, 12)),
        f"table_blocks[1] is 0, must be 1 <= block < 40; {B}",
    ),
    "block beyond the pool": (
        appended(table_blocks=int32(40, 11, 12)),
        f"table_blocks[0] is 40, must be 1 <= block < 40; {A}",
    ),
    "more blocks than a row can have": (
        {
            "table_rows": int32(1),
            "table_starts": int32(0),
            "table_counts": int32(16),
            "table_blocks": int32(*range(10, 26)),
        },
        f"table_counts[0] is 16, but the row has 1 blocks of at most 16; {B}",
    ),
}


@pytest.mark.parametrize("rule", TABLE_RULES)
def test_a_row_change_that_breaks_a_rule_is_named(ledger: Ledger, rule: str) -> None:
    fields, message = TABLE_RULES[rule]
    refusal = refusal_of(ledger, second_step(**fields))
    assert (str(refusal), refusal.sequence) == (message, None)


def sampling(temperature: float) -> worker_pb2.SamplingParams:
    return worker_pb2.SamplingParams(temperature=temperature, seed=2**64 - 1)


NEW_ROW_RULES = {
    "row out of range": (new_row(8, "c", [1]), "row is 8, must be 0 <= row < 8", 8),
    "row live already": (new_row(1, "c", [1]), "row 1 is live already, free it first", 1),
    "no tokens": (
        new_row(2, "c", []),
        "token_ids has 0 values, must have 1 to max_model_len 64",
        2,
    ),
    "too many tokens": (
        new_row(2, "c", [1] * 65),
        "token_ids has 65 values, must have 1 to max_model_len 64",
        2,
    ),
    "id beyond the vocabulary": (
        new_row(2, "c", [1, 1000]),
        "token_ids[1] is 1000, must be 0 <= id < 1000",
        2,
    ),
    "negative id": (new_row(2, "c", [-1]), "token_ids[0] is -1, must be 0 <= id < 1000", 2),
    "prompt_len 0": (
        new_row(2, "c", [1, 2], prompt_len=0),
        "prompt_len is 0, must be 1 <= prompt_len <= 2",
        2,
    ),
    "prompt longer than the tokens": (
        new_row(2, "c", [1, 2], prompt_len=3),
        "prompt_len is 3, must be 1 <= prompt_len <= 2",
        2,
    ),
    "everything in the pool": (
        new_row(2, "c", [1, 2], (6,), tokens_in_pool=2),
        "tokens_in_pool is 2, must be 0 <= tokens_in_pool < 2",
        2,
    ),
    "too few blocks for the pool's tokens": (
        new_row(2, "c", range(9), (6,), tokens_in_pool=5),
        "tokens_in_pool is 5, but 1 blocks hold only 4",
        2,
    ),
    "scratch block": (
        new_row(2, "c", [1], (0,)),
        "block_ids[0] is 0, must be 1 <= block < 40",
        2,
    ),
    "block beyond the pool": (
        new_row(2, "c", [1], (6, 40)),
        "block_ids[1] is 40, must be 1 <= block < 40",
        2,
    ),
    "block twice": (new_row(2, "c", [1], (6, 6)), "block_ids names a block twice", 2),
    "more blocks than a row can have": (
        new_row(2, "c", [1], range(10, 27)),
        "block_ids has 17 values, must have at most 16",
        2,
    ),
    "temperature not a number": (
        new_row(2, "c", [1], sampling=sampling(float("nan"))),
        "temperature is nan, must be 0 or 0.01 <= temperature <= 100",
        2,
    ),
    "negative temperature": (
        new_row(2, "c", [1], sampling=sampling(-1.0)),
        "temperature is -1.0, must be 0 or 0.01 <= temperature <= 100",
        2,
    ),
    "temperature too high": (
        new_row(2, "c", [1], sampling=sampling(float("inf"))),
        "temperature is inf, must be 0 or 0.01 <= temperature <= 100",
        2,
    ),
    **{
        f"{name} {value}": (
            new_row(2, "c", [1], sampling=worker_pb2.SamplingParams(**{name: value})),
            f"{name} is {value}, must be {low} <= {name} <= {high}",
            2,
        )
        for name, low, high, values in (
            ("repetition_penalty", 0.01, 100, (0.0, -1.0, 100.5, float("nan"), float("inf"))),
            ("frequency_penalty", -2, 2, (-2.5, 2.5, float("nan"))),
            ("presence_penalty", -2, 2, (-2.5, 2.5, float("nan"), float("-inf"))),
        )
        for value in values
    },
    **{
        f"top_logprobs {value}": (
            new_row(2, "c", [1], top_logprobs=value),
            f"top_logprobs is {value}, must be 0 <= top_logprobs <= 20 (at most 20, vocab_size "
            "1000)",
            2,
        )
        for value in (-1, 21, 10**6)
    },
}


@pytest.mark.parametrize("rule", NEW_ROW_RULES)
def test_a_new_row_that_breaks_a_rule_is_named(ledger: Ledger, rule: str) -> None:
    message, text, row = NEW_ROW_RULES[rule]
    refusal = refusal_of(ledger, second_step(new_rows=[message]))
    request = "b" if rule == "row live already" else "c"
    assert str(refusal) == f"new_rows: {text}; row {row}, request {request!r}"
    assert (refusal.row, refusal.request_id) == (row, request)
    assert ledger.states.live.nonzero()[0].tolist() == [1, 3]
    ledger.admit(second_step())  # nothing else has changed either


@pytest.mark.parametrize("temperature", [0.0, -0.0, 0.01, 100.0])
def test_temperatures_up_to_both_limits_are_taken(ledger: Ledger, temperature: float) -> None:
    row = new_row(2, "c", [1], sampling=sampling(temperature))
    checked = ledger.admit(second_step(new_rows=[row]))
    assert checked.new_temperatures.tolist() == [np.float32(temperature)]
    assert checked.new_seeds.tolist() == [2**64 - 1]


def test_penalties_up_to_their_limits_and_log_probabilities_are_taken(ledger: Ledger) -> None:
    settings = [
        {},
        {"repetition_penalty": 0.01, "frequency_penalty": -2.0, "presence_penalty": -2.0},
        {"repetition_penalty": 100.0, "frequency_penalty": 2.0, "presence_penalty": 1.0},
    ]
    rows = [
        new_row(row, "c", [1], sampling=worker_pb2.SamplingParams(**some), **more)
        for row, some, more in zip(
            (2, 4, 5), settings, ({}, {"top_logprobs": 0}, {"top_logprobs": 20}), strict=True
        )
    ]
    checked = ledger.admit(second_step(new_rows=rows))
    wanted = np.array([[1, 0, 0], [0.01, -2, -2], [100, 2, 1]], np.float32)
    assert checked.new_penalties.dtype == np.float32
    assert checked.new_penalties.tolist() == wanted.tolist()
    assert checked.new_top_logprobs.tolist() == [-1, 0, 20]


def test_no_more_log_probabilities_than_the_vocabulary_has_are_taken() -> None:
    ledger = Ledger(small_geometry(vocab_size=5), check_slots=True)
    ledger.admit(worker_pb2.Step(step_id=1, new_rows=[new_row(2, "c", [1], top_logprobs=5)]))
    refusal = refusal_of(ledger, second_step(new_rows=[new_row(4, "c", [1], top_logprobs=6)]))
    assert "top_logprobs is 6, must be 0 <= top_logprobs <= 5 (at most 20, vocab_size 5)" in str(
        refusal
    )


def test_a_row_may_be_freed_and_taken_again_in_one_step(ledger: Ledger) -> None:
    step = worker_pb2.Step(
        step_id=2,
        free_rows=int32(3),
        new_rows=[new_row(3, "c", range(6), (8,))],
        table_rows=int32(3),
        table_starts=int32(0),
        table_counts=int32(1),
        table_blocks=int32(2),
        rows=int32(3),
        query_lens=int32(6),
        context_lens=int32(6),
        slot_mapping=int64(32, 33, 34, 35, 8, 9),
        samples=b"\1",
    )
    checked = ledger.admit(step)
    assert ledger.request_ids[3] == "c"
    assert checked.block_indices.tolist() == [0, 1]
    assert checked.block_ids.tolist() == [8, 2]


def test_a_finished_row_may_rewrite_its_last_slot(ledger: Ledger) -> None:
    step = second_step(
        rows=int32(3), query_lens=int32(1), context_lens=int32(5), slot_mapping=int64(36)
    )
    step.samples = b"\0"
    ledger.admit(step)
    assert ledger.states.tokens_in_pool[3] == 5
    assert ledger.states.known_tokens[3] == 6


def test_a_shared_prefix_counts_as_in_the_pool(ledger: Ledger) -> None:
    step = worker_pb2.Step(
        step_id=2,
        new_rows=[new_row(2, "c", range(6), (7, 8), tokens_in_pool=4)],
        rows=int32(2),
        query_lens=int32(2),
        context_lens=int32(6),
        slot_mapping=int64(32, 33),
        samples=b"\1",
    )
    checked = ledger.admit(step)
    assert token_positions(checked.query_lens, checked.context_lens).tolist() == [4, 5]


def test_tokens_of_steps_in_flight_count_as_known(ledger: Ledger) -> None:
    decode = {"rows": int32(3), "query_lens": int32(1), "samples": b"\1"}
    for context, slot in ((6, 37), (7, 38), (8, 39)):
        ledger.admit(second_step(context_lens=int32(context), slot_mapping=int64(slot), **decode))
    assert ledger.states.known_tokens[3] == 9


def test_a_refused_step_changes_no_row(ledger: Ledger) -> None:
    before = ledger.states.copy()
    bad = second_step(
        free_rows=int32(1),
        new_rows=[new_row(1, "c", range(3), (6,))],
        slot_mapping=int64(0, 24, 25, 26),
    )
    refusal = refusal_of(ledger, bad)
    assert refusal.sequence == 0
    for name in ("live", "tokens_in_pool", "known_tokens", "num_blocks"):
        assert np.array_equal(getattr(ledger.states, name), getattr(before, name)), name
    assert ledger.request_ids[1] == "b"
    ledger.admit(second_step())


def test_slots_are_compared_with_tables_only_when_asked() -> None:
    elsewhere = second_step(slot_mapping=int64(38, 20, 21, 22))
    trusting, checking = (Ledger(small_geometry(), check_slots=check) for check in (False, True))
    for ledger in (trusting, checking):
        ledger.admit(first_step())
    assert trusting.admit(elsewhere).slots.tolist() == [[38, 20, 21, 22]]
    with pytest.raises(StepRefused, match="slot_mapping"):
        checking.admit(elsewhere)


FIELDS = (
    "free_rows",
    "new_rows",
    "table_rows",
    "table_starts",
    "table_counts",
    "table_blocks",
    "rows",
    "query_lens",
    "context_lens",
    "slot_mapping",
    "samples",
    "decode_steps",
)
NUMBERS = (0, 1, 2, 3, 4, 5, 6, 8, 16, 39, 40, 64, 159, 160, -1, 2**31 - 1, -(2**31))


def test_whatever_a_step_says_it_is_admitted_or_refused() -> None:
    """2,000 steps with one to three fields replaced by numbers near every limit: none raises
    anything else, and what is admitted writes inside the tables, the rows and the pool."""
    rng, admitted = random.Random(0), 0
    for _ in range(2000):
        ledger = Ledger(small_geometry(), check_slots=rng.random() < 0.5)
        ledger.admit(first_step())
        step = second_step()
        for name in rng.sample(FIELDS, rng.randint(1, 3)):
            values = rng.choices(NUMBERS, k=rng.randint(0, 3))
            if name == "decode_steps":
                step.decode_steps = rng.choice(NUMBERS)
            elif name == "samples":
                step.samples = bytes(rng.choices((0, 1, 2), k=2))
            elif name == "slot_mapping":
                step.slot_mapping = int64(*values)
            elif name == "new_rows":
                step.new_rows.append(new_row(rng.choice(NUMBERS), "c", values, values))
            else:
                setattr(step, name, int32(*values))
        try:
            checked = ledger.admit(step)
        except StepRefused:
            continue
        admitted += 1
        assert ((checked.slots >= 4) & (checked.slots < 160)).all()
        assert ((checked.block_indices >= 0) & (checked.block_indices < 16)).all()
        assert ((checked.block_ids >= 1) & (checked.block_ids < 40)).all()
        assert ((checked.token_ids >= 0) & (checked.token_ids < 1000)).all()
        assert (checked.context_lens + checked.decode_steps - 1 <= 64).all()
        assert checked.num_tokens * checked.decode_steps <= 64
    assert admitted > 20
