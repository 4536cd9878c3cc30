"""Captured steps with prompt chunks: which they are, and that they are their kernels one by one."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from nanoserve.v1 import worker_pb2
from scheduler.link.encoder import encode_step
from tests.player import greedy, load_llama
from tests.tiny_llama import tiny_llama
from tests.worker.step_messages import int32, int64, new_row
from tests.worker.toy_scheduler import ToyRequest, ToyScheduler, random_requests
from worker.__main__ import parse
from worker.batch import StepBatch
from worker.graphs import graph_bytes
from worker.ledger import Ledger
from worker.mixed_frame import MixedFrame, pack_mixed
from worker.mixed_graphs import Body, MixedGraphs, bodies, most_chunks, token_sizes
from worker.model.memory_profile import run_largest_steps
from worker.runner import TorchRunner
from worker.start import make_executor
from worker.step import exclusive_sum

LONGEST = 5000
BLOCK = 16
ROWS = 40
BLOCKS = 3000
NAN = float("nan")


def batch_of(
    lens: list[int], contexts: list[int], samples: list[int], repetitions: int = 1
) -> StepBatch:
    """Rows 10, 11, ..., with query lengths that begin with the ones; slots from 100 on."""
    starts = exclusive_sum(np.array(lens))
    rows = np.arange(10, 10 + len(lens), dtype=np.int32)
    decodes = lens.count(1)
    return StepBatch(
        rows=rows,
        query_starts=starts,
        context_lens=np.array(contexts, np.int32),
        slots=np.arange(repetitions * sum(lens)).reshape(repetitions, -1) + 100,
        num_decodes=decodes,
        max_query_len=max(lens, default=1),
        max_context_len=max(contexts, default=1),
        decode_context=sum(contexts[:decodes]),
        sample_tokens=(starts[1:] - 1)[samples].astype(np.int64),
        sample_rows=rows[samples],
        sample_positions=np.array(contexts, np.int32)[samples],
    )


def test_token_sizes_end_at_the_tokens_that_a_step_may_have() -> None:
    assert token_sizes(1) == (1,)
    assert token_sizes(64) == (16, 32, 64)
    assert token_sizes(100) == (16, 32, 64, 100)
    assert token_sizes(4096)[-3:] == (3072, 3584, 4096)
    assert token_sizes(8192)[-3:] == (6144, 7168, 8192)
    assert token_sizes(10_000) == token_sizes(8192)
    sizes = token_sizes(10_000)
    assert len(sizes) == 26
    assert max((after - size) / after for size, after in pairwise(sizes[4:])) <= 0.25


def test_there_is_room_for_every_division_of_few_tokens_into_chunks() -> None:
    assert [most_chunks(n) for n in (1, 16, 64, 512, 1024, 4096)] == [0, 8, 32, 32, 64, 256]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (batch_of([1], [5], []), 16),  # a chunk of one token, not its prompt's last
        (batch_of([1, 15], [5, 15], [0]), 16),
        (batch_of([1, 16], [5, 16], [0]), 32),
        (batch_of([64], [64], [0]), 64),
        (batch_of([65], [65], [0]), None),
        (batch_of([1] * 8, [5] * 8, [0]), 16),
        (batch_of([1] * 9, [5] * 9, [0]), None),  # more sequences than any graph
        (batch_of([2] * 8, [5] * 8, []), 16),
        (batch_of([], [], []), None),
        (batch_of([1] * 3, [5] * 3, [0, 1, 2], repetitions=2), None),
        (batch_of([1, 1, 2], [1 << 20, 1 << 20, 9], [0, 1]), 16),
        (batch_of([1, 1, 2], [1 << 20, (1 << 20) + 1, 9], [0, 1]), None),
    ],
)
def test_a_batch_runs_in_the_smallest_graph_that_holds_it(
    batch: StepBatch, size: int | None
) -> None:
    graphs = object.__new__(MixedGraphs)
    graphs.token_sizes, graphs._most_sequences = (16, 32, 64), 8
    assert graphs.size_for(batch) == size


def test_a_batch_of_many_short_chunks_runs_in_a_graph_of_more_tokens() -> None:
    graphs = object.__new__(MixedGraphs)
    graphs.token_sizes, graphs._most_sequences = token_sizes(1024), 100
    assert graphs.size_for(batch_of([2] * 32, [5] * 32, [])) == 64
    assert graphs.size_for(batch_of([2] * 33, [5] * 33, [])) == 640
    assert graphs.size_for(batch_of([2] * 64, [5] * 64, [])) == 1024
    assert graphs.size_for(batch_of([2] * 65, [5] * 65, [])) is None


def test_bodies_are_captured_with_decodes_and_without_the_largest_first() -> None:
    assert bodies([16, 64]) == [(64, True), (64, False), (16, True), (16, False)]
    assert bodies([1]) == [(1, True)]  # has no room for a chunk


@pytest.mark.parametrize(("rows", "chunks"), [(6, 4), (7, 4)])
def test_a_frame_holds_the_step_and_pads_of_no_token(rows: int, chunks: int) -> None:
    """At even and odd counts, so that the slots follow with and without a word between."""
    batch = batch_of([1, 1, 3, 2], [7, 30, 3, 12], [3, 0])
    words = pack_mixed(batch, rows, chunks, 16, scratch_row=99)
    assert len(words) == MixedFrame.num_words(rows, chunks, 16)
    frame = MixedFrame.at(torch.from_numpy(words.copy()), rows, chunks)
    pads = rows - 4
    assert frame.rows.tolist() == [10, 11, 12, 13] + [0] * pads
    assert frame.context_lens.tolist() == [7, 30, 3, 12] + [0] * pads
    assert frame.query_starts.tolist() == [0, 1, 2, 5, 7] + [7] * pads
    assert frame.decode_context_lens.tolist() == [7, 30] + [-1] * (rows - 2)
    assert frame.chunk_rows.tolist() == [12, 13, 0, 0]
    assert frame.chunk_context_lens.tolist() == [3, 12, 0, 0]
    assert frame.chunk_starts.tolist() == [2, 5, 7, 7, 7]
    assert frame.sample_tokens.tolist() == [6, 0] + [0] * (rows - 2)
    assert frame.sample_rows.tolist() == [13, 10] + [99] * (rows - 2)
    assert frame.sample_positions.tolist() == [12, 7] + [1] * (rows - 2)
    assert frame.slots.tolist() == [*range(100, 107), *[0] * 9]


def test_padded_steps_give_the_oracles_tokens_in_the_interpreter() -> None:
    """In a process of its own, which has the interpreter from its start."""
    script = Path(__file__).with_name("interpreted_mixed_graphs.py")
    root = Path(__file__).parents[2]
    environment = {
        "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{root}:{root / 'protos'}",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "steps equal" in done.stdout


def runner_of(folder: Path, *more: str) -> TorchRunner:
    flags = (
        f"--model {folder} --device cuda --num-blocks {BLOCKS} --block-size {BLOCK} "
        f"--max-rows {ROWS} --max-model-len {LONGEST} --max-step-tokens 800"
    )
    runner = make_executor(parse([*flags.split(), *more]))
    assert isinstance(runner, TorchRunner)
    runner.warm_up()
    return runner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(
        tmp_path_factory.mktemp("small"),
        hidden_size=256,
        intermediate_size=512,
        num_attention_heads=8,
        head_dim=64,
        max_position_embeddings=8192,
        torch_dtype="bfloat16",
    )


@pytest.fixture(scope="module")
def runner(folder: Path) -> TorchRunner:
    return runner_of(folder)


class Mixed:
    """Random rows of a runner, with shuffled tables, K/V before the step's tokens, and poison in
    every other slot. `parts` are (query length, context length, samples)."""

    def __init__(self, runner: TorchRunner, parts: list[tuple[int, int, bool]], seed: int) -> None:
        assert runner._graphs is not None
        self.graphs, self.rows, self.pool = runner._graphs.mixed, runner._rows, runner._pool
        rng = np.random.default_rng(seed)
        generator = torch.Generator("cuda").manual_seed(seed)
        parts = sorted(parts, key=lambda part: part[0] > 1)
        lens, contexts, samples = (np.array(x) for x in zip(*parts, strict=True))
        blocks = rng.permutation(np.arange(1, BLOCKS))
        self.rows.block_tables.zero_()
        self.before = [torch.full_like(x, NAN) for x in (self.pool.k, self.pool.v)]
        rows, slots = rng.permutation(ROWS)[: len(parts)].astype(np.int32), []
        for row, length, context in zip(rows, lens, contexts, strict=True):
            mine, blocks = np.split(blocks, [-(-context // BLOCK)])
            self.rows.block_tables[row, : len(mine)] = torch.from_numpy(mine).int().cuda()
            own = (mine[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)[:context]
            slots.append(own[context - length :])
            history = torch.from_numpy(own[: context - length]).cuda()
            for pool in self.before:
                flat = pool.view(pool.shape[0], -1, *pool.shape[3:])
                shape = (pool.shape[0], len(history), *pool.shape[3:])
                values = torch.randn(shape, generator=generator, device="cuda")
                flat[:, history] = values.to(pool.dtype)
        self.slots = np.concatenate(slots)
        self.rows.tokens.random_(0, 256, generator=generator)
        self.rows.temperatures[:ROWS] = torch.tensor([0.0, 0.8] * (ROWS // 2))
        self.rows.seeds[:ROWS] = torch.arange(ROWS) * 977
        self.tokens = self.rows.tokens.clone()
        starts, decodes = exclusive_sum(lens), int((lens == 1).sum())
        sampling = rng.permutation(np.flatnonzero(samples))
        self.batch = StepBatch(
            rows=rows,
            query_starts=starts,
            context_lens=contexts.astype(np.int32),
            slots=self.slots[None],
            num_decodes=decodes,
            max_query_len=int(lens.max()),
            max_context_len=int(contexts.max()),
            decode_context=int(contexts[:decodes].sum()),
            sample_tokens=(starts[1:] - 1)[sampling].astype(np.int64),
            sample_rows=rows[sampling],
            sample_positions=contexts[sampling].astype(np.int32),
        )

    def play(self, replayed: bool, scratch: float = NAN, scratch_token: int = 3) -> list:
        """[answers, the rows' tokens, the bits of the logits, all bits of K and of V but the
        scratch block's] of the step; the scratch block and row hold what is given."""
        for pool, before in zip((self.pool.k, self.pool.v), self.before, strict=True):
            pool.copy_(before)
            pool[:, 0] = scratch
        self.rows.tokens.copy_(self.tokens)
        self.rows.tokens[self.rows.scratch] = scratch_token
        step, size = self.graphs.step_of(self.batch), self.graphs.size_for(self.batch)
        assert step is not None
        assert size is not None
        step.place.copy_(torch.from_numpy(step.frames[0]))
        draws = len(self.batch.sample_rows)
        logits = torch.empty(0, dtype=torch.bfloat16)
        if replayed:
            answers = step.replay()
            logits = logits if step.logits is None else step.logits
        else:
            self.graphs._run_body(Body(size, self.batch.num_decodes > 0))
            if draws:
                logits = self.graphs._run_tail(self.graphs._draw_size(draws))
            answers = self.graphs._answers
        assert len(logits) >= draws
        kept = [x[:, 1:].clone().view(torch.int16) for x in (self.pool.k, self.pool.v)]
        bits = logits[:draws].clone().view(torch.int16)
        return [answers[:draws].clone(), self.rows.tokens[:-1].clone(), bits, *kept]


RAGGED = [
    [(2, 2, True)],
    [(512, 512, True)],
    [(1, 5, False)],
    [(300, 300, False)],  # nothing is drawn
    [(1, LONGEST, True), (33, 64, True), (2, LONGEST, True)],
    [(1, c, True) for c in (1, 255, 256, 257, 512, 513)] + [(17, 17, False), (16, 272, True)],
    [(1, 640, True)] * 30 + [(257, 257, True), (100, 1100, False)],
    [(2, 2, True)] * 33,
    [(1, 16, True)] * 39 + [(700, 700, True)],
    [(800, 3000, True)],
]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.gpu
def test_a_replay_is_the_kernels_one_by_one_bit_for_bit(runner: TorchRunner) -> None:
    """At changing sizes and lengths; each step writes its tokens' slots and its draws alone."""
    for seed, parts in enumerate(RAGGED):
        step = Mixed(runner, parts, seed)
        replayed = step.play(True)
        assert equal(replayed, step.play(False)), parts
        answers, tokens, _, *pools = replayed
        assert len(answers) == sum(samples for *_, samples in parts)
        assert bool((answers >= 0).all())
        rows, places = step.batch.sample_rows, step.batch.sample_positions
        wanted = step.tokens[:-1].clone()
        wanted[torch.from_numpy(rows).long(), torch.from_numpy(places).long()] = answers
        assert torch.equal(tokens, wanted)
        for pool, before in zip(pools, step.before, strict=True):
            moved = (pool != before[:, 1:].view(torch.int16)).flatten(3).any(-1).any(0)
            written = moved.view(-1).nonzero().view(-1).cpu().numpy() + BLOCK
            assert np.array_equal(written, np.sort(step.slots))


@pytest.mark.gpu
def test_what_pads_read_and_write_moves_no_row(runner: TorchRunner) -> None:
    for seed, parts in enumerate(RAGGED):
        step = Mixed(runner, parts, seed)
        results = [
            step.play(True, scratch, token) for scratch, token in ((NAN, 0), (1e4, 255), (0.0, 7))
        ]
        assert equal(results[0], results[1]), parts
        assert equal(results[0], results[2]), parts


def serve(runner: TorchRunner, seed: int) -> tuple[list[list[int]], list[ToyRequest]]:
    """The answers to random steps of chunks of up to 200 tokens, and the requests, answered."""
    scheduler = ToyScheduler(
        runner.geometry, 0, random.Random(seed), max_chunk=200, preempt_chance=0.02
    )
    requests = random_requests(random.Random(seed), 24, 256, 400)
    scheduler.waiting = list(requests)
    ledger, answers = Ledger(runner.geometry, check_slots=True), []
    while scheduler.busy:
        plan = scheduler.plan()
        (pending,) = runner.launch(ledger.admit(encode_step(plan)))
        tokens = pending.wait().tokens
        scheduler.answer(plan.step_id, tokens)
        answers.append(tokens.tolist())
    return answers, requests


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(2))
def test_tokens_are_those_of_kernels_launched_one_by_one_and_the_oracles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    folder = tiny_llama(tmp_path, max_position_embeddings=8192)
    runner = runner_of(folder)
    assert runner._graphs is not None
    mixed, sizes = runner._graphs.mixed, []
    replay = mixed.replay
    monkeypatch.setattr(mixed, "replay", lambda b, n: (sizes.append((b, n)), replay(b, n))[1])
    answers, requests = serve(runner, seed)
    assert len({body.tokens for body, _ in sizes}) > 5
    assert {body.decodes for body, _ in sizes} == {True, False}
    assert len({draws for _, draws in sizes}) > 5
    assert answers == serve(runner_of(folder, "--no-cuda-graphs"), seed)[0]
    model = load_llama(folder, face="reference")
    for request in [r for r in requests if r.temperature == 0.0 and len(r.prompt) < 60][:4]:
        count = min(request.count, 20)
        assert request.output[:count] == greedy(model, [request.prompt], count)[0]


@pytest.mark.gpu
def test_steps_with_prompts_neither_allocate_nor_wait(runner: TorchRunner) -> None:
    """In each a row takes a prompt of another length and the rows before it decode."""
    ledger = Ledger(runner.geometry, check_slots=True)
    allocations, rows = [], 12
    for row in range(rows):
        length = 30 + 40 * row
        parts = [(r, 1, 30 + 40 * r + row - r) for r in range(row)] + [(row, length, length)]
        blocks = range(1 + 50 * row, 51 + 50 * row)
        step = worker_pb2.Step(
            step_id=row + 1,
            new_rows=[new_row(row, f"{row}", [7] * length, blocks)],
            rows=int32(*(r for r, _, _ in parts)),
            query_lens=int32(*(n for _, n, _ in parts)),
            context_lens=int32(*(c for _, _, c in parts)),
            slot_mapping=int64(
                *((1 + 50 * r) * BLOCK + i for r, n, c in parts for i in range(c - n, c))
            ),
            samples=b"\1" * len(parts),
        )
        checked = ledger.admit(step)
        torch.cuda.set_sync_debug_mode("error")
        try:
            (pending,) = runner.launch(checked)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        allocations.append(torch.cuda.memory_stats()["allocation.all.allocated"])
        assert len(pending.wait().tokens) == row + 1
    assert len(set(allocations)) == 1


@pytest.mark.gpu
def test_the_memory_of_all_graphs_is_foreseen(folder: Path) -> None:
    flags = f"--model {folder} --device cuda --num-blocks 100 --max-rows 64 --max-model-len 5000"
    runner = make_executor(parse(flags.split()))
    assert isinstance(runner, TorchRunner)
    run_largest_steps(runner._model, 64, 8192, BLOCK)  # loads libraries, as planning the pool does
    foreseen = graph_bytes(runner._model, runner.geometry)
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    runner.warm_up()
    torch.cuda.empty_cache()
    taken = before - torch.cuda.mem_get_info()[0]
    assert 0.3 * foreseen < taken <= foreseen + (64 << 20)
