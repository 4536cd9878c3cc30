"""Steps in the form that graphs are captured of, padded, in Triton's interpreter; run by
test_mixed_graphs.py."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import torch

from kernels import linear, skinny_product
from scheduler.link.encoder import encode_step
from tests.kernels.interpreter import hasten
from tests.player import greedy, load_llama
from tests.tiny_llama import tiny_llama
from tests.worker.toy_scheduler import ToyScheduler, random_requests
from worker.batch import StepBatch
from worker.geometry import Geometry
from worker.kv_pool import KVPool
from worker.ledger import Ledger
from worker.mixed_graphs import Body, MixedGraphs
from worker.rows import Rows

BLOCKS, BLOCK = 40, 8


def few(x: torch.Tensor) -> bool:
    """The smaller of the two bodies, and the tails, multiply as a GPU does a few rows."""
    return 2 <= x.shape[0] <= 16


def main() -> None:
    """Every step of four random requests, decodes too, runs padded; greedy tokens equal the
    oracle's."""
    hasten()
    linear.few, skinny_product.multiprocessors = few, lambda _: 4
    temporary = tempfile.TemporaryDirectory()
    folder = tiny_llama(
        Path(temporary.name), num_hidden_layers=2, vocab_size=256, hidden_size=128,
        intermediate_size=192,
    )  # fmt: skip
    model = load_llama(folder, face="triton")
    config = model.config
    geometry = Geometry(
        device="cpu", max_model_len=64, num_blocks=BLOCKS, block_size=BLOCK, max_rows=6,
        max_step_tokens=24, max_steps_in_flight=2, max_decode_steps=1, fingerprint="",
        vocab_size=256, num_layers=2, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim,
        dtype="float32", bytes_per_block=1,
    )  # fmt: skip
    rows = Rows(geometry, "cpu", model.ops)
    shape = (2, BLOCKS, BLOCK, config.num_kv_heads, config.head_dim)
    pool = KVPool(*(torch.full(shape, float("nan")) for _ in range(2)))
    landing = torch.full((4096,), 0xAB, dtype=torch.uint8)
    graphs = MixedGraphs(model, pool, rows, landing, (16, 24), (2, 6))
    scheduler = ToyScheduler(geometry, 0, random.Random(3), max_chunk=20, preempt_chance=0)
    requests = random_requests(random.Random(3), 5, 256, 50)
    for request in requests:
        request.temperature, request.count = 0.0, min(request.count, 2)
    scheduler.waiting = list(requests)
    ledger, ran = Ledger(geometry, check_slots=True), set[tuple[Body, int]]()
    while scheduler.busy:
        plan = scheduler.plan()
        checked = ledger.admit(encode_step(plan))
        changes = rows.changes(checked)
        rows.apply({name: torch.from_numpy(column.copy()) for name, column in changes.items()})
        batch = StepBatch.of(checked)
        tokens = torch.zeros(0)
        if len(batch.rows):
            step, size = graphs.step_of(batch), graphs.size_for(batch)
            assert step is not None
            assert size is not None
            step.place.copy_(torch.from_numpy(step.frames[0]))
            draws = len(batch.sample_rows)
            body = Body(size, decodes=batch.num_decodes > 0)
            tokens = graphs.run(body, draws)[:draws]
            ran.add((body, draws))
        scheduler.answer(plan.step_id, tokens.numpy())
    oracle = load_llama(folder, face="reference")
    for request in requests:
        wanted = greedy(oracle, [request.prompt], request.count)[0]
        assert request.output == wanted, (request.output, wanted)
    assert {body for body, _ in ran} >= {(16, True), (16, False), (24, True)}
    assert len({draws for _, draws in ran}) > 2
    temporary.cleanup()
    print(f"{scheduler.step_id} steps equal: {sorted(ran)}")


if __name__ == "__main__":
    sys.exit(main())
