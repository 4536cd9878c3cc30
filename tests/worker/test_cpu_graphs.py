"""Captured decodes give the forward's own logits, bit for bit, whatever came before."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from kernels import cpu_attention, cpu_product
from tests.player import Player, load_llama
from tests.tiny_llama import tiny_llama
from worker.cpu_graphs import MOST_DECODES, CpuGraphs
from worker.model.llama import Llama

pytestmark = pytest.mark.skipif(
    not cpu_product.INSTRUCTIONS, reason="no product of our own on this processor"
)
ROWS = MOST_DECODES + 2
# Products of our own in every place, with biases, and norms apart from them at many rows.
CONFIG = {
    "hidden_size": 512,
    "head_dim": 64,
    "attention_bias": True,
    "mlp_bias": True,
    "num_hidden_layers": 3,
}


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def llama(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Llama:
    return load_llama(tiny_llama(tmp_path_factory.mktemp("tiny"), **CONFIG), request.param)


@pytest.fixture
def player(llama: Llama) -> Player:
    """Rows with prompts of 1 to 9 tokens."""
    player, rng = Player(llama, [120] * ROWS, block_size=8), random.Random(0)
    for row in range(ROWS):
        player.step({row: ids(rng, rng.randint(1, 9))}, samples=[])
    return player


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(256) for _ in range(count)]


def check(player: Player, graphs: CpuGraphs, rows: list[int], rng: random.Random) -> None:
    """A step of decodes is the forward's, in logits and in what it writes."""
    inputs = player.inputs({row: ids(rng, 1) for row in rows})
    assert graphs.suits(inputs)
    k, v = player.pool.k.clone(), player.pool.v.clone()
    expected = player.model.forward(inputs, player.pool)
    written = player.pool.k.clone(), player.pool.v.clone()
    player.pool.k.copy_(k)
    player.pool.v.copy_(v)
    assert torch.equal(graphs.forward(inputs), expected)
    for pool, after in zip((player.pool.k, player.pool.v), written, strict=True):
        assert torch.equal(pool.nan_to_num(7), after.nan_to_num(7))
    for row in rows:
        player.lengths[row] += 1


def test_decodes_of_any_count_in_any_order_are_the_forwards(llama: Llama, player: Player) -> None:
    graphs, rng = CpuGraphs(llama, player.pool), random.Random(1)
    for count in (3, 1, MOST_DECODES, 3, 17, 1, MOST_DECODES, 40, 17, 2, 40, 3):
        check(player, graphs, rng.sample(range(ROWS), count), rng)
    assert set(graphs._graphs) == {1, 2, 3, 17, 40, MOST_DECODES}


def test_what_runs_between_leaves_captured_steps_right(llama: Llama, player: Player) -> None:
    """A chunk makes attention by tiles take more room than it had."""
    cpu_attention._rooms.room = None
    graphs, rng = CpuGraphs(llama, player.pool), random.Random(2)
    check(player, graphs, [0], rng)
    room = cpu_attention._rooms.room
    player.step({1: ids(rng, 100)}, samples=[])
    for _ in range(3):
        check(player, graphs, [0], rng)
        check(player, graphs, [1], rng)
    (graph, _) = graphs._graphs[1]
    if cpu_attention.takes_tiles(player.pool.k):
        assert room is not cpu_attention._rooms.room
        assert graph._held
        assert all(held is room for held in graph._held)


def test_only_decodes_that_all_sample_and_are_not_too_many_are_captured(
    llama: Llama, player: Player
) -> None:
    graphs = CpuGraphs(llama, player.pool)
    assert graphs.suits(player.inputs({0: [1], 5: [2]}))
    assert not graphs.suits(player.inputs({0: [1, 2]}))
    assert not graphs.suits(player.inputs({0: [1], 1: [1, 2]}))
    assert not graphs.suits(player.inputs({0: [1], 1: [1]}, samples=[1]))
    assert not graphs.suits(player.inputs({0: [1]}, samples=[]))
    most = {row: [1] for row in range(MOST_DECODES)}
    assert graphs.suits(player.inputs(most))
    assert not graphs.suits(player.inputs(most | {MOST_DECODES: [1]}))


@pytest.mark.parametrize(
    ("dtype", "face"), [(torch.float16, "auto"), (torch.bfloat16, "reference")]
)
def test_a_model_whose_products_are_a_librarys_is_not_captured(
    tmp_path: Path, dtype: torch.dtype, face: str
) -> None:
    llama = load_llama(tiny_llama(tmp_path), dtype, face=face)
    player = Player(llama, [4])
    assert not CpuGraphs(llama, player.pool).suits(player.inputs({0: [1]}))
