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
from tests.worker.asking import Logged, ask, asked_of, penalties_of
from tests.worker.running_worker import small_geometry
from tests.worker.step_messages import first_step, int32, int64, new_row, second_step
from tests.worker.toy_scheduler import ToyScheduler, random_requests
from worker.executor import StepOutput
from worker.ledger import Ledger
from worker.simulate import SimulatedExecutor, SimulationOptions, read_script
from worker.simulated_logprobs import expected_logprobs
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


@pytest.mark.parametrize("seed", range(3))
def test_penalties_and_log_probabilities_are_what_each_request_alone_would_get(seed: int) -> None:
    """Of random steps as above, two steps planned ahead."""
    rng = random.Random(seed)
    worker, logged = Worker(num_blocks=40), Logged()
    scheduler = ToyScheduler(worker.ledger.geometry, 0, rng)
    requests = random_requests(rng, 20, VOCAB, 64)
    scheduler.waiting = list(requests)
    in_flight: deque[tuple[int, list[str], StepOutput]] = deque()
    while scheduler.busy or in_flight:
        if scheduler.busy:
            plan = scheduler.plan()
            (output,) = worker.run(ask(encode_step(plan)))
            sampling = [x.request_id for x in scheduler._in_flight[plan.step_id]]
            in_flight.append((plan.step_id, sampling, output))
        if len(in_flight) == 2 or not scheduler.busy:
            step_id, request_ids, output = in_flight.popleft()
            logged.take(output, request_ids)
            scheduler.answer(step_id, output.tokens)
    for request in requests:
        name, settings = request.request_id, penalties_of(request.request_id)
        how = {"temperature": request.temperature, "seed": request.seed}
        tokens = expected_tokens(request.prompt, request.count, VOCAB, **how, **settings)
        assert request.output == tokens, name
        plain = expected_tokens(request.prompt, request.count, VOCAB, **how)
        assert (tokens != plain) == (settings not in ({}, {"repetition_penalty": 1.0}))
        if (top := asked_of(name).get("top_logprobs")) is not None:
            right = expected_logprobs(request.prompt, tokens, VOCAB, int(top))
            assert logged.of.pop(name) == right
    assert not logged.of


def test_a_resume_that_forgets_anything_of_its_row_shows() -> None:
    """Its prompt's length, a penalty, its output, or what was asked for."""
    penalties = {"repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": -1.0}
    right = expected_tokens(PROMPT_A, 2, VOCAB, **penalties)
    known = [*PROMPT_A, right[0]]

    def resumed(changes: dict[str, float], prompt_len: int = 5, ids: list[int] = known) -> tuple:
        row = new_row(
            3, "a", ids, (7, 9), prompt_len=prompt_len, top_logprobs=2,
            sampling=worker_pb2.SamplingParams(**(penalties | changes)),
        )  # fmt: skip
        step = worker_pb2.Step(
            step_id=1, new_rows=[row], rows=int32(3), query_lens=int32(len(ids)),
            context_lens=int32(len(ids)), samples=b"\1",
            slot_mapping=int64(*(28, 29, 30, 31, 36, 37)[: len(ids)]),
        )  # fmt: skip
        (output,) = Worker().run(step)
        assert output.logprobs is not None
        return int(output.tokens[0]), output.logprobs.values.tolist()

    token, values = resumed({})
    assert token == right[1]
    (pairs,) = expected_logprobs(known, [token], VOCAB, 2)
    assert values == [value for _, value in pairs]
    for name in penalties:
        changed = resumed({name: 1.25})
        assert changed[0] != token
        assert changed[1][1:] == values[1:], "they are those of the model before penalties"
    assert resumed({}, prompt_len=6)[0] != token
    for ids in (PROMPT_A, [*PROMPT_A, right[0] ^ 1], [*PROMPT_A[1:], *right]):
        wrong = resumed({}, ids=ids)
        assert wrong[0] != token
        assert not set(wrong[1]) & set(values)


def test_log_probabilities_fall_and_the_most_likely_is_what_is_drawn_greedily() -> None:
    output = expected_tokens(PROMPT_A, 30, VOCAB)
    logged = expected_logprobs(PROMPT_A, output, VOCAB, 20)
    for (own, value), *likely in logged:
        assert likely[0] == (own, value)
        values = [v for _, v in likely]
        assert values == sorted(set(values), reverse=True)
        assert len({i for i, _ in likely}) == 20
        assert sum(np.exp(values)) < 1
    assert len({pairs[0][1] for pairs in logged}) == 30


def test_a_row_that_is_not_finite_has_no_log_probabilities() -> None:
    worker = Worker(options=SimulationOptions(non_finite_tokens=frozenset({22})))
    first = first_step()
    first.new_rows[0].top_logprobs = first.new_rows[1].top_logprobs = 1
    worker.run(first)
    (output,) = worker.run(second_step())
    assert output.logprobs is not None
    assert (output.logprobs.samples.tolist(), output.logprobs.counts.tolist()) == ([0], [2])


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
    counts = np.bincount(next_tokens(hashes, 10))
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


def test_device_time_follows_the_cost_model_and_steps_queue_behind_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.simulate.time.monotonic_ns", lambda: 7)
    worker = Worker(options=SimulationOptions(step_ms=20, token_us=1000))
    (first,) = worker.executor.launch(worker.ledger.admit(first_step()))
    (second,) = worker.executor.launch(worker.ledger.admit(second_step()))
    assert (first.device_ns, second.device_ns) == (25_000_000, 24_000_000)
    assert (first.ends_ns, second.ends_ns) == (25_000_007, 49_000_007)


def test_costs_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="step_ms is -1, must be 0 <= step_ms < 1e6"):
        SimulationOptions(step_ms=-1)
    with pytest.raises(ValueError, match="token_us is nan"):
        replace(SimulationOptions(), token_us=float("nan"))
