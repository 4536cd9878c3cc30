"""Captured decodes: which steps they take, and that they equal their kernels one by one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from nanoserve.v1 import worker_pb2
from scheduler.link.encoder import encode_step
from tests.player import greedy, load_llama
from tests.tiny_llama import tiny_llama
from tests.worker.step_messages import int32, int64, new_row
from tests.worker.toy_scheduler import ToyScheduler, random_requests
from worker.__main__ import parse
from worker.batch import StepBatch
from worker.decode_frame import DecodeFrame, pack_frames
from worker.decode_graphs import DecodeGraphs, graph_sizes
from worker.ledger import Ledger
from worker.runner import TorchRunner
from worker.start import make_executor

LONGEST = 5000
BLOCK = 16


def batch_of(
    contexts: list[int], repetitions: int = 1, sampling: int | None = None, query_len: int = 1
) -> StepBatch:
    """Rows 10, 11, ... with one query token each, but the last `query_len`."""
    count = len(contexts)
    lens = np.ones(count, np.int32)
    lens[-1:] = query_len
    return StepBatch(
        rows=np.arange(10, 10 + count, dtype=np.int32),
        query_starts=np.concatenate(([0], lens.cumsum())).astype(np.int32),
        context_lens=np.array(contexts, np.int32),
        slots=np.arange(repetitions * int(lens.sum())).reshape(repetitions, -1) + 100,
        num_decodes=int((lens == 1).sum()),
        max_query_len=query_len,
        max_context_len=max(contexts, default=1),
        decode_context=int(np.array(contexts)[lens == 1].sum()),
        sample_tokens=(lens.cumsum() - 1)[:sampling],
        sample_rows=np.arange(10, 10 + count, dtype=np.int32)[:sampling],
        sample_positions=np.array(contexts, np.int32)[:sampling],
    )


def test_sizes_end_at_the_rows_that_a_worker_has() -> None:
    assert graph_sizes(1) == (1,)
    assert graph_sizes(8) == (1, 2, 4, 8)
    assert graph_sizes(11) == (1, 2, 4, 8, 11)
    assert graph_sizes(256)[-3:] == (192, 224, 256)
    assert len(graph_sizes(256)) == 15
    assert graph_sizes(300)[-2:] == (256, 300)
    assert graph_sizes(4096)[-1] == 512


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (batch_of([5]), 1),
        (batch_of([5] * 3), 4),
        (batch_of([5] * 8), 8),
        (batch_of([5] * 9), None),  # more than any graph
        (batch_of([5] * 3, repetitions=4), 4),
        (batch_of([5] * 3, sampling=2), None),  # a chunk of one token, not its prompt's last
        (batch_of([5] * 3, query_len=2), None),
        (batch_of([]), None),
        (batch_of([1 << 20, 1 << 20]), 2),
        (batch_of([1 << 20, (1 << 20) + 1]), None),  # longer than there is room for
        (batch_of([1 << 20, 1 << 20], repetitions=2), None),
    ],
)
def test_a_batch_runs_in_the_smallest_graph_that_holds_it(
    batch: StepBatch, size: int | None
) -> None:
    graphs = object.__new__(DecodeGraphs)
    graphs.sizes, graphs._most = (1, 2, 4, 8), 8
    assert graphs.size_for(batch) == size


def test_a_frame_holds_the_step_and_pads_on_the_scratch_row() -> None:
    frames = pack_frames(batch_of([7, 30], repetitions=3), 5, scratch_row=99)
    assert frames.shape == (3, 10)
    for k, words in enumerate(frames):
        place = torch.zeros(200, dtype=torch.uint8)
        frame = DecodeFrame.at(place, 5)
        frame.words.copy_(torch.from_numpy(words))
        assert frame.slots.tolist() == [100 + 2 * k, 101 + 2 * k, 0, 0, 0]
        assert frame.rows.tolist() == [10, 11, 99, 99, 99]
        assert frame.context_lens.tolist() == [7 + k, 30 + k, 1, 1, 1]
        assert not place[80:].any()


def runner_of(folder: Path, *more: str) -> TorchRunner:
    flags = (
        f"--model {folder} --device cuda --num-blocks 3000 --block-size {BLOCK} --max-rows 20 "
        f"--max-model-len {LONGEST} --max-step-tokens 64 --max-decode-steps 4"
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


class Decodes:
    """Random rows of a runner, with shuffled tables, K/V before their last token, and poison in
    every other slot."""

    def __init__(self, runner: TorchRunner, contexts: list[int], seed: int) -> None:
        assert runner._graphs is not None
        self.graphs, self.rows, self.pool = runner._graphs.decodes, runner._rows, runner._pool
        rng = np.random.default_rng(seed)
        count = len(contexts)
        rows = rng.permutation(20)[:count].astype(np.int32)
        blocks = rng.permutation(np.arange(1, 3000))
        self.before = [torch.full_like(x, float("nan")) for x in (self.pool.k, self.pool.v)]
        generator = torch.Generator("cuda").manual_seed(seed)
        self.rows.block_tables.zero_()
        slots = []
        for row, context in zip(rows.tolist(), contexts, strict=True):
            mine, blocks = np.split(blocks, [-(-context // BLOCK)])
            self.rows.block_tables[row, : len(mine)] = torch.from_numpy(mine).int().cuda()
            own = torch.from_numpy(mine[:, None] * BLOCK + np.arange(BLOCK)).view(-1).cuda()
            slots.append(int(own[context - 1]))
            for pool in self.before:
                flat = pool.view(pool.shape[0], -1, *pool.shape[3:])
                shape = (pool.shape[0], context - 1, *pool.shape[3:])
                values = torch.randn(shape, generator=generator, device="cuda")
                flat[:, own[: context - 1]] = values.to(pool.dtype)
        self.slots = torch.tensor(slots, device="cuda")
        self.rows.tokens.random_(0, 256, generator=generator)
        self.rows.temperatures[:20] = torch.tensor([0.0, 0.8] * 10)
        self.rows.seeds[:20] = torch.arange(20) * 977
        self.tokens = self.rows.tokens.clone()
        self.batch = StepBatch(
            rows=rows,
            query_starts=np.arange(count + 1, dtype=np.int32),
            context_lens=np.array(contexts, np.int32),
            slots=np.array([slots]),
            num_decodes=count,
            max_query_len=1,
            max_context_len=max(contexts),
            decode_context=sum(contexts),
            sample_tokens=np.arange(count),
            sample_rows=rows,
            sample_positions=np.array(contexts, np.int32),
        )

    def play(self, replayed: bool, scratch: float = float("nan"), scratch_token: int = 3) -> list:
        """[answers, the rows' tokens, the bits of the logits, all bits of K and of V but the
        scratch block's] of the step; the scratch block and row hold what is given."""
        for pool, before in zip((self.pool.k, self.pool.v), self.before, strict=True):
            pool.copy_(before)
            pool[:, 0] = scratch
        self.rows.tokens.copy_(self.tokens)
        self.rows.tokens[self.rows.scratch] = scratch_token
        size = self.graphs.size_for(self.batch)
        assert size is not None
        self.graphs.frame.words.copy_(torch.from_numpy(self.graphs.pack(self.batch)[0]))
        if replayed:
            step = self.graphs.step_of(self.batch)
            assert step is not None
            answers, logits = step.replay(), step.logits
            assert logits is not None
        else:
            logits, answers = self.graphs._run(size)
        kept = [x[:, 1:].clone().view(torch.int16) for x in (self.pool.k, self.pool.v)]
        count = len(self.batch.rows)
        bits = logits[:count].clone().view(torch.int16)
        return [answers[:count].clone(), self.rows.tokens[:-1].clone(), bits, *kept]


RAGGED = [
    [1],
    [LONGEST],
    [1, 16, 17],
    [255, 256, 257, 1, 15, 4096, LONGEST],
    [700] * 16,
    [1] * 20,
    [33, 1, 4999, 512, 513, 31, 32, 64, 65, 1, 1000],
    [2, 1],
]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.gpu
def test_a_replay_is_the_kernels_one_by_one_bit_for_bit(runner: TorchRunner) -> None:
    """At changing sizes and lengths; each step writes its rows' slots and tokens alone."""
    for seed, contexts in enumerate(RAGGED):
        decodes = Decodes(runner, contexts, seed)
        replayed = decodes.play(True)
        assert equal(replayed, decodes.play(False)), contexts
        answers, tokens, _, *pools = replayed
        assert bool((answers >= 0).all())
        rows, places = decodes.batch.rows, decodes.batch.sample_positions
        wanted = decodes.tokens[:-1].clone()
        wanted[torch.from_numpy(rows).long(), torch.from_numpy(places).long()] = answers
        assert torch.equal(tokens, wanted)
        for pool, before in zip(pools, decodes.before, strict=True):
            moved = (pool != before[:, 1:].view(torch.int16)).flatten(3).any(-1).any(0)
            assert torch.equal(moved.view(-1).nonzero().view(-1), decodes.slots.sort()[0] - BLOCK)


@pytest.mark.gpu
def test_what_pads_read_and_write_moves_no_row(runner: TorchRunner) -> None:
    for seed, contexts in enumerate(([5], [1, 300, 17], [40] * 9, [LONGEST, 1, 2, 3, 4])):
        decodes = Decodes(runner, contexts, seed)
        results = [
            decodes.play(True, scratch, token)
            for scratch, token in ((float("nan"), 0), (1e4, 255), (0.0, 7))
        ]
        assert equal(results[0], results[1])
        assert equal(results[0], results[2])


@pytest.mark.gpu
def test_a_draw_in_a_graph_follows_the_rows_seed_and_temperature(runner: TorchRunner) -> None:
    decodes = Decodes(runner, [9] * 16, 1)
    warm = torch.from_numpy(decodes.batch.rows % 2 == 1)
    answers = decodes.play(True)[0].cpu()
    decodes.rows.seeds[:20] += 1
    reseeded = decodes.play(True)[0].cpu()
    assert torch.equal(answers[~warm], reseeded[~warm])
    assert not torch.equal(answers[warm], reseeded[warm])
    decodes.rows.temperatures.zero_()
    assert torch.equal(decodes.play(True)[0].cpu()[~warm], answers[~warm])


def encode_prompts(count: int) -> worker_pb2.Step:
    """Rows 0, 1, ... with a prompt of 3 tokens in a block each."""
    slots = [BLOCK * (row + 1) + i for row in range(count) for i in range(3)]
    return worker_pb2.Step(
        step_id=1,
        new_rows=[new_row(row, f"{row}", [row, 2, 3], (row + 1,)) for row in range(count)],
        rows=int32(*range(count)),
        query_lens=int32(*[3] * count),
        context_lens=int32(*[3] * count),
        slot_mapping=int64(*slots),
        samples=b"\1" * count,
    )


def encode_decode(step_id: int, rows: int, context: int) -> worker_pb2.Step:
    """A row's blocks beyond the first, each named where it begins, are 100 + row + 50 * index."""
    index, offset = divmod(context - 1, BLOCK)
    blocks = [row + 1 if index == 0 else 100 + row + 50 * index for row in range(rows)]
    grown = () if offset else range(rows)
    return worker_pb2.Step(
        step_id=step_id,
        table_rows=int32(*grown),
        table_starts=int32(*grown),
        table_counts=int32(*[1 for _ in grown]),
        table_blocks=int32(*[blocks[row] for row in grown]),
        rows=int32(*range(rows)),
        query_lens=int32(*[1] * rows),
        context_lens=int32(*[context] * rows),
        slot_mapping=int64(*[block * BLOCK + offset for block in blocks]),
        samples=b"\1" * rows,
    )


@pytest.mark.gpu
def test_steady_decodes_neither_allocate_nor_wait(runner: TorchRunner) -> None:
    ledger = Ledger(runner.geometry, check_slots=True)
    for pending in runner.launch(ledger.admit(encode_prompts(5))):
        pending.wait()
    allocations = []
    for context in range(4, 40):
        step = ledger.admit(encode_decode(context - 2, 5, context))
        torch.cuda.set_sync_debug_mode("error")
        try:
            (pending,) = runner.launch(step)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        allocations.append(torch.cuda.memory_stats()["allocation.all.allocated"])
        assert len(pending.wait().tokens) == 5
    assert len(set(allocations)) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(2))
def test_all_steps_of_random_chunks_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Greedy tokens equal each prompt's alone, of random chunks in changing batches."""
    folder = tiny_llama(tmp_path, max_position_embeddings=8192)
    runner = runner_of(folder)
    assert runner._graphs is not None
    decodes, mixed = runner._graphs.decodes, runner._graphs.mixed
    replays: list[int] = []
    bodies: list[int] = []
    replay, replay_mixed = decodes.replay, mixed.replay
    monkeypatch.setattr(decodes, "replay", lambda n: (replays.append(n), replay(n))[1])
    monkeypatch.setattr(mixed, "replay", lambda t, n: (bodies.append(t), replay_mixed(t, n))[1])
    scheduler = ToyScheduler(runner.geometry, 0, random.Random(seed), preempt_chance=0)
    requests = random_requests(random.Random(seed), 14, 256, 60)
    for request in requests:
        request.temperature = 0.0
    scheduler.waiting = list(requests)
    ledger, steps = Ledger(runner.geometry, check_slots=True), 0
    while scheduler.busy:
        plan = scheduler.plan()
        (pending,) = runner.launch(ledger.admit(encode_step(plan)))
        scheduler.answer(plan.step_id, pending.wait().tokens)
        steps += bool(len(plan.rows))
    assert len(replays) + len(bodies) == steps
    assert len(set(replays)) > 1
    assert len(set(bodies)) > 1
    model = load_llama(folder, face="reference")
    for request in requests:
        assert request.output == greedy(model, [request.prompt], request.count)[0]
