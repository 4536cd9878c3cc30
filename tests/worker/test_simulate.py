"""The simulated worker answers what each request's own tokens say, and shows every fault."""

from __future__ import annotations

import json
import random
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nanoserve.v1 import worker_pb2
from scheduler.link.encoder import encode_step
from tests.worker.running_worker import small_geometry
from tests.worker.step_messages import first_step, int32, int64, second_step
from tests.worker.toy_scheduler import ToyScheduler, random_requests
from worker.executor import StepOutput
from worker.ledger import Ledger
from worker.simulate import SimulatedExecutor, SimulationOptions, read_script
from worker.simulated_tokens import Choices, expected_tokens, next_tokens

VOCAB = 1000
PROMPT_A, PROMPT_B = list(range(10, 15)), [20, 21, 22]


class Worker:
    """A ledger and an executor, without a server."""

    def __init__(
        self, *, check_slots: bool = True, options: SimulationOptions | None = None, **changes: int
    ) -> None:
        geometry = small_geometry(**changes)
        self.executor = SimulatedExecutor(geometry, options)
        self.ledger = Ledger(geometry, check_slots=check_slots)

    def run(self, step: worker_pb2.Step) -> list[StepOutput]:
        return [pending.wait() for pending in self.executor.launch(self.ledger.admit(step))]

    def tokens(self, step: worker_pb2.Step) -> list[int]:
        (output,) = self.run(step)
        return output.tokens.tolist()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("depth", [1, 3])
def test_random_steps_answer_what_each_request_alone_would(seed: int, depth: int) -> None:
    """Random chunks, arrivals, preemptions, rows and blocks, `depth` steps planned ahead."""
    rng = random.Random(seed)
    worker = Worker(num_blocks=40)
    scheduler = ToyScheduler(worker.ledger.geometry, 0, rng)
    requests = random_requests(rng, 20, VOCAB, 64)
    scheduler.waiting = list(requests)
    in_flight: deque[tuple[int, list[int]]] = deque()
    while scheduler.busy or in_flight:
        if scheduler.busy:
            plan = scheduler.plan()
            in_flight.append((plan.step_id, worker.tokens(encode_step(plan))))
        if len(in_flight) == depth or not scheduler.busy:
            step_id, tokens = in_flight.popleft()
            scheduler.answer(step_id, np.array(tokens, np.int32))
    for request in requests:
        assert request.output == expected_tokens(
            request.prompt,
            request.count,
            VOCAB,
            temperature=request.temperature,
            seed=request.seed,
        ), request.request_id


def test_a_repeated_decode_answers_as_single_steps_do() -> None:
    worker = Worker()
    first = worker.tokens(first_step())
    step = second_step(
        rows=int32(3),
        query_lens=int32(1),
        context_lens=int32(6),
        slot_mapping=int64(37, 38, 39),
        samples=b"\1",
        decode_steps=3,
    )
    repeated = [output.tokens.item() for output in worker.run(step)]
    assert first + repeated == expected_tokens(PROMPT_A, 4, VOCAB)
    after = second_step(
        rows=int32(3),
        table_rows=int32(3),
        table_starts=int32(0),
        table_counts=int32(1),
        table_blocks=int32(2),
        query_lens=int32(1),
        context_lens=int32(9),
        slot_mapping=int64(8),
        samples=b"\1",
    )
    assert worker.tokens(after) == expected_tokens(PROMPT_A, 5, VOCAB)[4:]


def test_a_wrong_slot_changes_the_next_token() -> None:
    worker = Worker(check_slots=False)
    worker.tokens(first_step())
    tokens = worker.tokens(second_step(slot_mapping=int64(38, 20, 21, 22)))
    assert tokens[0] != expected_tokens(PROMPT_A, 2, VOCAB)[1]
    assert tokens[1] == expected_tokens(PROMPT_B, 1, VOCAB)[0]


def test_a_block_that_another_row_writes_changes_the_next_token() -> None:
    """Row 1 gets the first block of row 3, whose newest token lies in another one."""
    worker = Worker()
    first = first_step()
    first.new_rows[1].block_ids = int32(7)
    worker.tokens(first)
    tokens = worker.tokens(second_step(slot_mapping=int64(37, 28, 29, 30)))
    assert tokens[0] != expected_tokens(PROMPT_A, 2, VOCAB)[1]
    assert tokens[1] == expected_tokens(PROMPT_B, 1, VOCAB)[0]


def test_a_wrong_table_changes_the_next_token() -> None:
    worker = Worker(check_slots=False)
    first = first_step()
    first.new_rows[0].block_ids = int32(9, 7)
    assert worker.tokens(first) != expected_tokens(PROMPT_A, 1, VOCAB)


def test_a_lost_or_repeated_token_changes_every_later_one() -> None:
    right = expected_tokens(PROMPT_A, 8, VOCAB)
    for wrong in (PROMPT_A[1:], PROMPT_A[:1] + PROMPT_A, PROMPT_A[::-1]):
        assert all(a != b for a, b in zip(expected_tokens(wrong, 8, VOCAB), right, strict=True))


def test_the_seed_counts_only_with_a_temperature() -> None:
    greedy = expected_tokens(PROMPT_A, 8, VOCAB)
    assert expected_tokens(PROMPT_A, 8, VOCAB, seed=7) == greedy
    warm = expected_tokens(PROMPT_A, 8, VOCAB, temperature=1.0, seed=7)
    assert warm != greedy
    assert warm != expected_tokens(PROMPT_A, 8, VOCAB, temperature=1.0, seed=8)


def test_avoided_tokens_are_never_drawn_and_all_others_are() -> None:
    avoid = {0, 3, 7}
    tokens = expected_tokens([1], 400, 10, avoid=avoid)
    assert set(tokens) == set(range(10)) - avoid
    worker = Worker(options=SimulationOptions(avoid_tokens=frozenset(range(900))))
    expected = expected_tokens(PROMPT_A, 1, VOCAB, avoid=range(900))
    assert worker.tokens(first_step()) == expected
    assert expected[0] >= 900
    with pytest.raises(ValueError, match="avoid names all 10 ids"):
        Choices(10, range(10))


def test_indices_spread_evenly_over_the_choices() -> None:
    hashes = np.arange(100_000, dtype=np.uint64)
    zeros = np.zeros(len(hashes), np.float32)
    counts = np.bincount(next_tokens(hashes, zeros, zeros.astype(np.uint64), 10))
    assert abs(counts - 10_000).max() < 4 * np.sqrt(10_000 * 0.9)


def test_a_script_is_answered_by_output_position_and_its_end_repeats(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text("[5, 6, 7]")
    worker = Worker(options=SimulationOptions(script=read_script(path, VOCAB)))
    output = worker.tokens(first_step())
    for context, slot in ((6, 37), (7, 38), (8, 39)):
        step = second_step(rows=int32(3), query_lens=int32(1), samples=b"\1")
        step.context_lens, step.slot_mapping = int32(context), int64(slot)
        output += worker.tokens(step)
    assert output == [5, 6, 7, 7]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "must be a JSON list of at least one token id"),
        ({"a": 1}, "must be a JSON list of at least one token id"),
        ([1, 1000], r"\[1\] is 1000, must be 0 <= id < 1000"),
        ([True], r"\[0\] is True, must be 0 <= id < 1000"),
    ],
)
def test_a_script_that_is_no_list_of_ids_is_refused(
    tmp_path: Path, content: object, message: str
) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_script(path, VOCAB)


def test_a_row_that_ends_on_a_chosen_token_is_not_finite() -> None:
    worker = Worker(options=SimulationOptions(non_finite_tokens=frozenset({22})))
    worker.tokens(first_step())
    (output,) = worker.run(second_step())
    assert output.non_finite is not None
    assert output.non_finite.tolist() == [False, True]
    assert output.tokens.tolist() == [expected_tokens(PROMPT_A, 2, VOCAB)[1], 0]


def test_device_time_follows_the_cost_model_and_steps_queue_behind_each_other() -> None:
    worker = Worker(options=SimulationOptions(step_ms=20, token_us=1000))
    (first,) = worker.executor.launch(worker.ledger.admit(first_step()))
    (second,) = worker.executor.launch(worker.ledger.admit(second_step()))
    assert (first.device_ns, second.device_ns) == (25_000_000, 24_000_000)
    assert second.ends_ns - first.ends_ns == 24_000_000


def test_costs_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="step_ms is -1, must be 0 <= step_ms < 1e6"):
        SimulationOptions(step_ms=-1)
    with pytest.raises(ValueError, match="token_us is nan"):
        replace(SimulationOptions(), token_us=float("nan"))
