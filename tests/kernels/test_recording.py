"""Recorded launches run again on what lies at their places then."""

from __future__ import annotations

import threading

import pytest
import torch

from kernels import cpu
from kernels.compiled import recorder_here
from kernels.recording import Memory, Recording
from tests.kernels.cases import randn

MOST = 8


def activated(rows: int, memory: Memory) -> tuple[Recording, torch.Tensor, torch.Tensor]:
    """A recording of two activations in a row, its input and its result."""
    x = randn(rows, 64, dtype=torch.float32)
    with (recording := Recording(memory)):
        out = cpu.silu_and_mul(cpu.silu_and_mul(x))
    return recording, x, out


def twice(x: torch.Tensor) -> torch.Tensor:
    return cpu.silu_and_mul(cpu.silu_and_mul(x))


def test_a_recording_is_carried_out_and_again_on_other_numbers() -> None:
    recording, x, out = activated(5, Memory(MOST))
    assert torch.equal(out, twice(x))
    for seed in range(3):
        x.copy_(randn(5, 64, dtype=torch.float32, seed=seed))
        recording.run()
        assert torch.equal(out, twice(x))


def test_recordings_share_their_memory_and_each_writes_its_own_rows() -> None:
    memory = Memory(MOST)
    few, x, out = activated(2, memory)
    many, y, all_out = activated(MOST, memory)
    assert out.data_ptr() == all_out.data_ptr()
    few.run()
    assert torch.equal(out, twice(x))
    assert torch.equal(all_out[2:], twice(y)[2:])
    many.run()
    assert torch.equal(all_out, twice(y))


def test_only_this_threads_launches_are_recorded_and_only_until_the_end() -> None:
    memory, x = Memory(MOST), randn(1, 64, dtype=torch.float32)
    with Recording(memory) as recording:
        other = threading.Thread(target=cpu.silu_and_mul, args=(x,))
        other.start()
        other.join()
    cpu.silu_and_mul(x)
    assert len(recording._table) == 0
    with pytest.raises(ZeroDivisionError), Recording(memory):
        raise ZeroDivisionError
    assert recorder_here() is None
