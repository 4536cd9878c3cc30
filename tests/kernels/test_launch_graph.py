"""Captured launches run again on what lies at their places then."""

from __future__ import annotations

import threading

import pytest
import torch

from kernels import cpu
from kernels.compiled import capture_here
from kernels.launch_graph import GraphMemory, LaunchGraph
from tests.kernels.cases import randn

MOST = 8


def activated(rows: int, memory: GraphMemory) -> tuple[LaunchGraph, torch.Tensor, torch.Tensor]:
    """A graph of two activations in a row, its input and its result."""
    x = randn(rows, 64, dtype=torch.float32)
    with (graph := LaunchGraph(memory)):
        out = cpu.silu_and_mul(cpu.silu_and_mul(x))
    return graph, x, out


def twice(x: torch.Tensor) -> torch.Tensor:
    return cpu.silu_and_mul(cpu.silu_and_mul(x))


def test_what_is_captured_is_carried_out_and_again_on_other_numbers() -> None:
    graph, x, out = activated(5, GraphMemory(MOST))
    assert torch.equal(out, twice(x))
    for seed in range(3):
        x.copy_(randn(5, 64, dtype=torch.float32, seed=seed))
        graph.replay()
        assert torch.equal(out, twice(x))


def test_graphs_share_their_memory_and_each_writes_its_own_rows() -> None:
    memory = GraphMemory(MOST)
    few, x, out = activated(2, memory)
    many, y, all_out = activated(MOST, memory)
    assert out.data_ptr() == all_out.data_ptr()
    few.replay()
    assert torch.equal(out, twice(x))
    assert torch.equal(all_out[2:], twice(y)[2:])
    many.replay()
    assert torch.equal(all_out, twice(y))


def test_only_this_threads_launches_are_captured_and_only_until_the_end() -> None:
    memory, x = GraphMemory(MOST), randn(1, 64, dtype=torch.float32)
    with LaunchGraph(memory) as graph:
        other = threading.Thread(target=cpu.silu_and_mul, args=(x,))
        other.start()
        other.join()
    cpu.silu_and_mul(x)
    assert len(graph._table) == 0
    with pytest.raises(ZeroDivisionError), LaunchGraph(memory):
        raise ZeroDivisionError
    assert capture_here() is None
