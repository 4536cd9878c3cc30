"""The torch runner behind the service: every token is the dense model's own."""

from __future__ import annotations

import argparse
import random
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels import cpu_product
from nanoserve.v1 import worker_pb2
from scheduler.link.encoder import encode_step
from tests.player import greedy, load_llama
from tests.tiny_llama import tiny_llama
from tests.worker.running_worker import Stream, connect, running_worker
from tests.worker.step_messages import int32, int64, new_row
from tests.worker.toy_scheduler import ToyRequest, ToyScheduler, random_requests
from worker.__main__ import parse
from worker.executor import Pending
from worker.ledger import Ledger
from worker.runner import TorchRunner
from worker.start import make_executor


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


def flags(folder: Path, device: str = "cpu", dtype: str = "auto") -> argparse.Namespace:
    text = (
        f"--model {folder} --device {device} --dtype {dtype} --num-blocks 40 --block-size 8 "
        "--max-rows 8 --max-model-len 64 --max-step-tokens 64 --max-steps-in-flight 4 "
        "--max-decode-steps 4"
    )
    return parse(text.split())


class Worker:
    """A runner with its ledger, without a server."""

    def __init__(self, folder: Path, device: str = "cpu", dtype: str = "auto") -> None:
        runner = make_executor(flags(folder, device, dtype))
        assert isinstance(runner, TorchRunner)
        self.runner = runner
        self.runner.warm_up()
        self.ledger = Ledger(runner.geometry, check_slots=True)

    def launch(self, step: worker_pb2.Step) -> list[Pending]:
        return list(self.runner.launch(self.ledger.admit(step)))

    def run(self, step: worker_pb2.Step) -> list[list[int]]:
        return [pending.wait().tokens.tolist() for pending in self.launch(step)]


def serve(worker: Worker, requests: list[ToyRequest], seed: int, depth: int = 3) -> None:
    """Plays requests in random chunks, orders, rows and blocks, with preemptions; `depth` steps
    are launched before the first of them is waited for."""
    scheduler = ToyScheduler(worker.ledger.geometry, 0, random.Random(seed))
    scheduler.waiting = list(requests)
    in_flight: deque[tuple[int, Pending]] = deque()
    while scheduler.busy or in_flight:
        if scheduler.busy:
            plan = scheduler.plan()
            (pending,) = worker.launch(encode_step(plan))
            in_flight.append((plan.step_id, pending))
        if len(in_flight) == depth or not scheduler.busy:
            step_id, pending = in_flight.popleft()
            scheduler.answer(step_id, pending.wait().tokens)


def copies(requests: list[ToyRequest]) -> list[ToyRequest]:
    return [ToyRequest(r.request_id, r.prompt, r.count, r.temperature, r.seed) for r in requests]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("seed", range(3))
def test_greedy_tokens_equal_each_prompt_alone(folder: Path, seed: int, device: str) -> None:
    requests = random_requests(random.Random(seed), 10, 256, 60)
    for request in requests:
        request.temperature = 0.0
    serve(Worker(folder, device), requests, seed)
    model = load_llama(folder, face="reference")
    for request in requests:
        (right,) = greedy(model, [request.prompt], request.count)
        assert request.output == right, request.request_id


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_seeded_tokens_do_not_depend_on_neighbours_chunks_or_rows(
    folder: Path, device: str
) -> None:
    requests = random_requests(random.Random(7), 12, 256, 60)
    runs = []
    for seed in range(3):
        run = copies(requests)
        random.Random(seed).shuffle(run)
        serve(Worker(folder, device), run, seed)
        runs.append({r.request_id: r.output for r in run})
    assert runs[0] == runs[1] == runs[2]
    warm = next(r for r in requests if r.temperature and r.count > 8)
    other = copies([warm])
    other[0].seed ^= 1
    serve(Worker(folder, device), other, 0)
    assert other[0].output != runs[0][warm.request_id]


@pytest.mark.skipif(not cpu_product.INSTRUCTIONS, reason="no product of our own here")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_cpus_captured_decodes_give_the_tokens_of_those_that_are_not(
    folder: Path, dtype: str
) -> None:
    requests = random_requests(random.Random(3), 12, 256, 60)
    outputs = []
    for captures in (True, False):
        worker, run = Worker(folder, dtype=dtype), copies(requests)
        graphs = worker.runner._cpu_graphs
        if not captures:
            worker.runner._cpu_graphs = None
        serve(worker, run, seed=5)
        outputs.append([r.output for r in run])
        assert graphs is not None
        assert (len(graphs._graphs) > 2) == captures, "two are the warm-up's"
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_repeated_decode_equals_single_steps(folder: Path, device: str) -> None:
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]

    def prompt_step() -> worker_pb2.Step:
        return worker_pb2.Step(
            step_id=1,
            new_rows=[
                new_row(0, "a", prompts[0], (3, 1)),
                new_row(
                    5,
                    "b",
                    prompts[1],
                    (2, 4),
                    sampling=worker_pb2.SamplingParams(temperature=0.9, seed=11),
                ),
            ],
            rows=int32(0, 5),
            query_lens=int32(3, 5),
            context_lens=int32(3, 5),
            slot_mapping=int64(24, 25, 26, 16, 17, 18, 19, 20),
            samples=b"\1\1",
        )

    def decode(k: int, repetitions: int) -> worker_pb2.Step:
        slots = [slot for j in range(k, k + repetitions) for slot in (27 + j, (21, 22, 23, 32)[j])]
        return worker_pb2.Step(
            step_id=2 + k,
            rows=int32(0, 5),
            query_lens=int32(1, 1),
            context_lens=int32(4 + k, 6 + k),
            slot_mapping=int64(*slots),
            samples=b"\1\1",
            decode_steps=repetitions,
        )

    single, repeated = Worker(folder, device), Worker(folder, device)
    expected = single.run(prompt_step()) + [single.run(decode(k, 1))[0] for k in range(4)]
    assert repeated.run(prompt_step()) + repeated.run(decode(0, 4)) == expected
    model = load_llama(folder, face="reference")
    assert [tokens[0] for tokens in expected] == greedy(model, prompts[:1], 5)[0]


@pytest.mark.parametrize("own", [1, 5])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_row_that_shares_blocks_gets_the_tokens_of_its_whole_prompt(
    folder: Path, device: str, own: int
) -> None:
    """Row 5 takes two blocks of row 0, beside whose decode it computes its `own` tokens."""
    worker = Worker(folder, device)
    shared = list(range(100, 116))
    first, second = [*shared, 7], [*shared, *range(30, 30 + own)]
    (a,) = worker.run(
        worker_pb2.Step(
            step_id=1,
            new_rows=[new_row(0, "a", first, (3, 1, 6))],
            rows=int32(0),
            query_lens=int32(17),
            context_lens=int32(17),
            slot_mapping=int64(*range(24, 32), *range(8, 16), 48),
            samples=b"\1",
        )
    )
    (both,) = worker.run(
        worker_pb2.Step(
            step_id=2,
            new_rows=[new_row(5, "b", second, (3, 1), tokens_in_pool=16)],
            table_rows=int32(5),
            table_starts=int32(0),
            table_counts=int32(1),
            table_blocks=int32(2),
            rows=int32(0, 5),
            query_lens=int32(1, own),
            context_lens=int32(18, 16 + own),
            slot_mapping=int64(49, *range(16, 16 + own)),
            samples=b"\1\1",
        )
    )
    (more,) = worker.run(
        worker_pb2.Step(
            step_id=3,
            rows=int32(0, 5),
            query_lens=int32(1, 1),
            context_lens=int32(19, 17 + own),
            slot_mapping=int64(50, 16 + own),
            samples=b"\1\1",
        )
    )
    model = load_llama(folder, face="reference")
    assert [a[0], both[0], more[0]] == greedy(model, [first], 3)[0]
    assert [both[1], more[1]] == greedy(model, [second], 2)[0]


def test_a_row_whose_logits_are_not_finite_gets_token_0_and_a_flag(folder: Path) -> None:
    worker = Worker(folder)
    worker.runner._pool.k[:, 3] = torch.nan  # the block of row 0's prefix
    step = worker_pb2.Step(
        step_id=1,
        new_rows=[
            new_row(0, "a", range(9), (3, 1), tokens_in_pool=8),
            new_row(5, "b", [4, 5, 6], (2,)),
        ],
        rows=int32(0, 5),
        query_lens=int32(1, 3),
        context_lens=int32(9, 3),
        slot_mapping=int64(8, 16, 17, 18),
        samples=b"\1\1",
    )
    (pending,) = worker.launch(step)
    output = pending.wait()
    assert output.non_finite is not None
    assert output.non_finite.tolist() == [True, False]
    (right,) = greedy(load_llama(folder, face="reference"), [[4, 5, 6]], 1)
    assert output.tokens.tolist() == [0, *right]


def test_a_step_without_sequences_or_samples_answers_no_tokens(folder: Path) -> None:
    worker = Worker(folder)
    assert worker.run(worker_pb2.Step(step_id=1)) == [[]]
    step = worker_pb2.Step(
        step_id=2,
        new_rows=[new_row(0, "a", [1, 2, 3], (3,))],
        rows=int32(0),
        query_lens=int32(2),
        context_lens=int32(2),
        slot_mapping=int64(24, 25),
        samples=b"\0",
    )
    assert worker.run(step) == [[]]


def test_weights_that_give_no_finite_logits_stop_the_warm_up(tmp_path: Path) -> None:
    runner = make_executor(flags(tiny_llama(tmp_path)))
    assert isinstance(runner, TorchRunner)
    runner._model.weights.final_norm.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="logits that are not finite"):
        runner.warm_up()


@pytest.mark.gpu
def test_a_launch_never_waits_for_the_device(folder: Path) -> None:
    worker = Worker(folder, "cuda")
    scheduler = ToyScheduler(worker.ledger.geometry, 0, random.Random(0), preempt_chance=0)
    scheduler.waiting = random_requests(random.Random(0), 8, 256, 60)
    torch.cuda.set_sync_debug_mode("error")
    try:
        pendings = [worker.launch(encode_step(scheduler.plan()))[0] for _ in range(12)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    outputs = [pending.wait() for pending in pendings]
    assert sum(len(output.tokens) for output in outputs) > 0
    assert all(output.device_ns > 0 for output in outputs if len(output.tokens))


def test_a_steps_times_are_parts_of_its_total(folder: Path) -> None:
    """On a CPU the forward runs inside the launch, and is not counted as host work again."""
    with running_worker(make_executor(flags(folder))) as worker, worker.stub() as stub:
        step = worker_pb2.Step(
            step_id=1,
            incarnation=connect(stub).incarnation,
            new_rows=[new_row(0, "a", range(60), range(1, 9))],
            rows=int32(0),
            query_lens=int32(60),
            context_lens=int32(60),
            slot_mapping=int64(*range(8, 68)),
            samples=b"\1",
        )
        times = Stream(stub, 5).ask(step).times
    parts = (times.queue, times.input, times.device, times.sample)
    assert min(parts) > 0
    assert sum(parts) <= times.total


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_results_are_kept_until_they_are_asked_for(folder: Path, device: str) -> None:
    """More steps than the rings have places, none of them waited for."""
    prompt = [1, 2, 3]
    worker = Worker(folder, device)
    step = worker_pb2.Step(
        step_id=1,
        new_rows=[new_row(0, "a", prompt, range(1, 5))],
        rows=int32(0),
        query_lens=int32(3),
        context_lens=int32(3),
        slot_mapping=int64(8, 9, 10),
        samples=b"\1",
    )
    pendings = worker.launch(step)
    for context in range(4, 25):
        step = worker_pb2.Step(
            step_id=context - 2,
            rows=int32(0),
            query_lens=int32(1),
            context_lens=int32(context),
            slot_mapping=int64(8 + context - 1),
            samples=b"\1",
        )
        pendings += worker.launch(step)
    tokens = np.concatenate([pending.wait().tokens for pending in pendings]).tolist()
    assert tokens == greedy(load_llama(folder, face="reference"), [prompt], len(tokens))[0]
