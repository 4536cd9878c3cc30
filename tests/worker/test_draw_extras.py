"""Penalties and log-probabilities of the torch runner: those of each request alone, whatever its
chunks, rows and neighbours are, and however often it begins again."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch

from nanoserve.v1 import worker_pb2
from scheduler.link.encoder import encode_step
from tests.player import greedy, load_llama
from tests.tiny_llama import tiny_llama
from tests.worker.asking import (
    Logged,
    Pairs,
    ask,
    asked_of,
    assert_near,
    greedy_with_logprobs,
    penalties_of,
)
from tests.worker.running_worker import Stream, connect, running_worker
from tests.worker.step_messages import int32, int64, new_row
from tests.worker.toy_scheduler import ToyRequest, ToyScheduler, random_requests
from worker.__main__ import parse
from worker.draw_extras import DrawExtras
from worker.executor import Pending, StepOutput
from worker.ledger import Ledger
from worker.results import LoggedDraws
from worker.runner import TorchRunner
from worker.start import make_executor

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


def runner_of(folder: Path, device: str, *more: str) -> TorchRunner:
    text = (
        f"--model {folder} --device {device} --num-blocks 40 --block-size 8 --max-rows 8 "
        "--max-model-len 64 --max-step-tokens 64 --max-steps-in-flight 4 --max-decode-steps 4"
    )
    runner = make_executor(parse([*text.split(), *more]))
    assert isinstance(runner, TorchRunner)
    runner.warm_up()
    return runner


def serve(runner: TorchRunner, requests: list[ToyRequest], seed: int) -> dict[str, list[Pairs]]:
    """Plays requests in random chunks, orders, rows and blocks, with preemptions, three steps in
    flight; returns the log-probabilities of each."""
    ledger, logged = Ledger(runner.geometry, check_slots=True), Logged()
    scheduler = ToyScheduler(runner.geometry, 0, random.Random(seed))
    scheduler.waiting = list(requests)
    in_flight: deque[tuple[int, list[str], Pending]] = deque()
    while scheduler.busy or in_flight:
        if scheduler.busy:
            plan = scheduler.plan()
            (pending,) = runner.launch(ledger.admit(ask(encode_step(plan))))
            sampling = [x.request_id for x in scheduler._in_flight[plan.step_id]]
            in_flight.append((plan.step_id, sampling, pending))
        if len(in_flight) == 3 or not scheduler.busy:
            step_id, request_ids, pending = in_flight.popleft()
            output = pending.wait()
            logged.take(output, request_ids)
            scheduler.answer(step_id, output.tokens)
    return logged.of


def requests_of(seed: int) -> list[ToyRequest]:
    return random_requests(random.Random(seed), 12, 256, 60)


@pytest.mark.parametrize(
    ("device", "more"),
    [
        ("cpu", ()),
        pytest.param("cuda", (), marks=pytest.mark.gpu),
        pytest.param("cuda", ("--no-cuda-graphs",), marks=pytest.mark.gpu),
    ],
)
def test_each_request_gets_what_it_would_get_alone(
    folder: Path, device: str, more: tuple[str, ...]
) -> None:
    requests = requests_of(3)
    for request in requests:
        request.temperature = 0.0
    logged = serve(runner_of(folder, device, *more), requests, 3)
    model, changed = load_llama(folder, face="reference"), 0
    for request in requests:
        name, prompt, count = request.request_id, request.prompt, request.count
        top = int(asked_of(name).get("top_logprobs", 0))
        output, wanted = greedy_with_logprobs(model, prompt, count, top, **penalties_of(name))
        assert request.output == output, name
        if "top_logprobs" in asked_of(name):
            assert_near(logged.pop(name), wanted)
        changed += output != greedy(model, [prompt], count)[0]
    assert not logged
    assert changed > 4


@pytest.mark.parametrize("device", DEVICES)
def test_seeded_requests_get_the_same_with_other_neighbours_chunks_and_preemptions(
    folder: Path, device: str
) -> None:
    runner, runs = runner_of(folder, device), []
    for seed in range(2):
        requests = requests_of(7)
        random.Random(seed).shuffle(requests)
        logged = serve(runner, requests, seed)
        runs.append(({x.request_id: x.output for x in requests}, logged))
    assert runs[0][0] == runs[1][0]
    assert runs[0][1].keys() == runs[1][1].keys()
    for name, pairs in runs[0][1].items():
        assert_near(pairs, runs[1][1][name])


def prompts_step() -> worker_pb2.Step:
    """A row with penalties, one without, and one with log-probabilities and a temperature."""
    drawn = worker_pb2.SamplingParams(temperature=0.9, seed=11, presence_penalty=2.0)
    rows = [
        new_row(0, "0", [7, 7, 9], (3, 1)),
        new_row(5, "1", [4, 5, 6, 7, 8], (2, 4)),
        new_row(6, "3", [1, 2], (5, 6), sampling=drawn),
    ]
    return ask(
        worker_pb2.Step(
            step_id=1,
            new_rows=rows,
            rows=int32(0, 5, 6),
            query_lens=int32(3, 5, 2),
            context_lens=int32(3, 5, 2),
            slot_mapping=int64(24, 25, 26, 16, 17, 18, 19, 20, 40, 41),
            samples=b"\1\1\1",
        )
    )


def decodes_step(k: int, repetitions: int) -> worker_pb2.Step:
    slots = [s for j in range(k, k + repetitions) for s in (27 + j, (21, 22, 23, 32)[j], 42 + j)]
    return worker_pb2.Step(
        step_id=2 + k,
        rows=int32(0, 5, 6),
        query_lens=int32(1, 1, 1),
        context_lens=int32(4 + k, 6 + k, 3 + k),
        slot_mapping=int64(*slots),
        samples=b"\1\1\1",
        decode_steps=repetitions,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_each_of_repeated_decodes_sees_the_tokens_before_it(folder: Path, device: str) -> None:
    def outputs(*steps: worker_pb2.Step) -> list[StepOutput]:
        runner = runner_of(folder, device)
        ledger = Ledger(runner.geometry, check_slots=True)
        pendings = [one for step in steps for one in runner.launch(ledger.admit(step))]
        return [pending.wait() for pending in pendings]

    single = outputs(prompts_step(), *(decodes_step(k, 1) for k in range(4)))
    repeated = outputs(prompts_step(), decodes_step(0, 4))
    for one, other in zip(single, repeated, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.logprobs is not None
        assert other.logprobs is not None
        assert one.logprobs.ids.tolist() == other.logprobs.ids.tolist()
        assert np.abs(one.logprobs.values - other.logprobs.values).max() < 1e-4
    model = load_llama(folder, face="reference")
    output = greedy_with_logprobs(model, [7, 7, 9], 5, 0, repetition_penalty=1.5)[0]
    assert [one.tokens[0] for one in repeated] == output
    assert [one.tokens[1] for one in repeated] == greedy(model, [[4, 5, 6, 7, 8]], 5)[0]


@pytest.mark.parametrize("device", DEVICES)
def test_a_resume_goes_on_as_it_would_have(folder: Path, device: str) -> None:
    """With its output among its tokens; one that takes its output for prompt does not."""
    prompt, top = [7, 7, 9], 2
    penalties = {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": -2.0}
    model = load_llama(folder, face="reference")
    output, wanted = greedy_with_logprobs(model, prompt, 8, top, **penalties)
    known = [*prompt, *output[:5]]
    found = []
    for prompt_len in (len(prompt), len(known)):
        runner = runner_of(folder, device)
        ledger = Ledger(runner.geometry, check_slots=True)
        step = worker_pb2.Step(
            step_id=1,
            new_rows=[
                new_row(
                    2,
                    "again",
                    known,
                    (3, 1),
                    prompt_len=prompt_len,
                    top_logprobs=top,
                    sampling=worker_pb2.SamplingParams(**penalties),
                )
            ],
            rows=int32(2),
            query_lens=int32(8),
            context_lens=int32(8),
            slot_mapping=int64(*range(24, 32)),
            samples=b"\1",
        )
        outputs = [pending.wait() for pending in runner.launch(ledger.admit(step))]
        for context in (9, 10):
            step = worker_pb2.Step(
                step_id=context,
                rows=int32(2),
                query_lens=int32(1),
                context_lens=int32(context),
                slot_mapping=int64(context - 1),
                samples=b"\1",
            )
            outputs += [pending.wait() for pending in runner.launch(ledger.admit(step))]
        found.append([int(one.tokens[0]) for one in outputs])
        if prompt_len == len(prompt):
            logged = [
                list(zip(x.logprobs.ids.tolist(), x.logprobs.values.tolist(), strict=True))
                for x in outputs
                if x.logprobs
            ]
            assert_near(logged, wanted[5:])
    assert found[0] == output[5:]
    assert found[1] != found[0]


def test_what_a_row_asked_for_ends_with_its_request(folder: Path) -> None:
    runner = runner_of(folder, "cpu")
    ledger = Ledger(runner.geometry, check_slots=True)
    runner.launch(ledger.admit(prompts_step()))
    step = worker_pb2.Step(
        step_id=2,
        free_rows=int32(0, 6),
        new_rows=[new_row(row, "x", [7, 7, 9], (row + 10,)) for row in (0, 6)],
        rows=int32(0, 6),
        query_lens=int32(3, 3),
        context_lens=int32(3, 3),
        slot_mapping=int64(80, 81, 82, 128, 129, 130),
        samples=b"\1\1",
    )
    (pending,) = runner.launch(ledger.admit(step))
    output = pending.wait()
    assert output.logprobs is None
    model = load_llama(folder, face="reference")
    assert output.tokens.tolist() == greedy(model, [[7, 7, 9]], 1)[0] * 2


def three_prompts() -> worker_pb2.Step:
    """Rows 0, 1 and 5 of requests 0, 1 and 5; the first has a prefix in block 3."""
    rows = [
        new_row(0, "0", range(9), (3, 1), tokens_in_pool=8),
        new_row(1, "1", [8, 9], (4,)),
        new_row(5, "5", [4, 5, 6], (2,)),
    ]
    return ask(
        worker_pb2.Step(
            step_id=1,
            new_rows=rows,
            rows=int32(0, 1, 5),
            query_lens=int32(1, 2, 3),
            context_lens=int32(9, 2, 3),
            slot_mapping=int64(8, 32, 33, 16, 17, 18),
            samples=b"\1\1\1",
        )
    )


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_is_not_finite_has_no_log_probabilities(folder: Path, device: str) -> None:
    runner = runner_of(folder, device)
    runner._pool.k[:, 3] = torch.nan
    ledger = Ledger(runner.geometry, check_slots=True)
    (pending,) = runner.launch(ledger.admit(three_prompts()))
    output = pending.wait()
    assert output.non_finite is not None
    assert output.logprobs is not None
    assert output.non_finite.tolist() == [True, False, False]
    assert output.logprobs.samples.tolist() == [2]
    assert output.logprobs.counts.tolist() == [4]
    pairs = list(zip(output.logprobs.ids.tolist(), output.logprobs.values.tolist(), strict=True))
    model = load_llama(folder, face="reference")
    assert_near([pairs], greedy_with_logprobs(model, [4, 5, 6], 1, 3)[1])


def test_log_probabilities_come_over_the_wire_with_the_places_of_their_tokens(
    folder: Path,
) -> None:
    with running_worker(runner_of(folder, "cpu")) as worker, worker.stub() as stub:
        step = three_prompts()
        step.incarnation = connect(stub).incarnation
        step.new_rows[0].tokens_in_pool = 0
        step.query_lens, step.slot_mapping = (
            int32(9, 2, 3), int64(*range(24, 32), 8, 32, 33, 16, 17, 18)
        )  # fmt: skip
        result = Stream(stub, 5).ask(step)
    assert not result.flags
    assert np.frombuffer(result.logprob_samples, "<i4").tolist() == [0, 2]
    assert np.frombuffer(result.logprob_counts, "<i4").tolist() == [1, 4]
    ids = np.frombuffer(result.logprob_ids, "<i4").tolist()
    values = np.frombuffer(result.logprobs, "<f4").tolist()
    pairs = list(zip(ids, values, strict=True))
    model = load_llama(folder, face="reference")
    wanted = greedy_with_logprobs(model, range(9), 1, 0, repetition_penalty=1.5)[1]
    assert_near([pairs[:1], pairs[1:]], wanted + greedy_with_logprobs(model, [4, 5, 6], 1, 3)[1])
    assert np.frombuffer(result.tokens, "<i4")[[0, 2]].tolist() == [ids[0], ids[1]]


@pytest.mark.gpu
def test_a_launch_with_them_never_waits_for_the_device_and_is_replayed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_of(folder, "cuda")
    monkeypatch.setattr(runner, "_repetition", None)  # what launches kernel by kernel
    ledger = Ledger(runner.geometry, check_slots=True)
    steps = [prompts_step(), decodes_step(0, 1), decodes_step(1, 3)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        pendings = [one for step in steps for one in runner.launch(ledger.admit(step))]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(pendings) == 5
    for pending in pendings:
        output = pending.wait()
        assert output.logprobs is not None
        assert output.logprobs.counts.tolist() == [1, 21]


def test_what_was_packed_for_the_most_is_cut_to_what_each_asked_for() -> None:
    nothing = np.zeros(0, np.int64)
    counts = np.array([1, 3, 2], np.int32)
    extras = DrawExtras(nothing, np.array([0, 2, 5]), counts, 0)
    assert extras.top_logprobs == 2
    ids = np.arange(9, dtype=np.int32).reshape(3, 3)
    values = -ids.astype(np.float32) / 2
    packed = np.stack((ids, values.view(np.int32)), axis=1)
    draws = LoggedDraws(extras, torch.zeros(0))
    found = draws.on_host(packed, None)
    assert found.samples.tolist() == [0, 2, 5]
    assert found.ids.tolist() == [0, 3, 4, 5, 6, 7]
    assert found.values.tolist() == [0, -1.5, -2, -2.5, -3, -3.5]
    found = draws.on_host(packed, np.arange(6) == 2)
    assert (found.samples.tolist(), found.counts.tolist()) == ([0, 5], [1, 2])
    assert found.ids.tolist() == [0, 6, 7]
