"""Compiling ahead, by what Triton would call; and on a GPU by what it does call."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

triton = pytest.importorskip("triton")

import kernels  # noqa: E402
from kernels.compile_ahead import compile_ahead  # noqa: E402


@dataclass(eq=False)
class FakeKernel:
    """A JITFunction that tells the listener of what it is made to compile."""

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))
    cached: bool = False
    compiled: list[str] = field(default_factory=list)
    launchers: int = 0

    def launch(self, key: str) -> bool:
        """Whether Triton would launch it, without having it compiled."""
        hook = triton.knobs.runtime.jit_cache_hook
        named = {"key": key, "specialization_data": f"data of {key}"}
        return not hook(
            key=key, repr="", fn=SimpleNamespace(jit_function=self), compile=named,
            is_manual_warmup=False, already_compiled=False,
        )  # fmt: skip

    def preload(self, data: str) -> Launcher:
        assert triton.knobs.runtime.jit_cache_hook is None
        self.barrier.wait(20)
        self.compiled.append(data)
        times = SimpleNamespace(total=1_500_000)
        triton.knobs.compilation.listener(
            src=None, metadata={}, metadata_group={}, times=times, cache_hit=self.cached
        )
        return Launcher(self)


@dataclass
class Launcher:
    """A CompiledKernel, whose host side is made when it is first looked at."""

    kernel: FakeKernel

    @property
    def run(self) -> object:
        self.kernel.launchers += 1
        return None


def test_each_kernel_is_compiled_once_after_the_last_launch_and_none_is_launched() -> None:
    one, other = FakeKernel(), FakeKernel(cached=True)
    with compile_ahead() as done:
        assert not any([one.launch("a"), one.launch("b"), other.launch("a"), one.launch("a")])
        assert (one.compiled, other.compiled) == ([], [])
    assert sorted(one.compiled) == ["data of a", "data of b"]
    assert other.compiled == ["data of a"]
    assert (one.launchers, other.launchers) == (2, 1)
    assert (done.kernels, done.compiled, done.compiler_seconds) == (3, 2, 3.0)
    assert triton.knobs.compilation.listener is None


def test_kernels_are_compiled_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    kernel = FakeKernel(threading.Barrier(2))  # each waits for the other
    with compile_ahead():
        kernel.launch("a")
        kernel.launch("b")
    assert len(kernel.compiled) == 2


def test_a_compilers_failure_is_raised_and_leaves_no_hook() -> None:
    kernel = FakeKernel(threading.Barrier(2))
    kernel.barrier.abort()
    with pytest.raises(threading.BrokenBarrierError), compile_ahead():
        kernel.launch("a")
    assert triton.knobs.runtime.jit_cache_hook is None
    assert triton.knobs.compilation.listener is None


@pytest.mark.gpu
def test_on_a_gpu_a_kernel_compiled_before_is_not_launched_either() -> None:
    ops = kernels.ops("cuda")
    out = torch.ones(4, dtype=torch.int32, device="cuda")
    at, values = torch.arange(4, device="cuda"), torch.zeros(4, dtype=torch.int32, device="cuda")
    ops.scatter(out, at, values)
    out.fill_(1)
    with compile_ahead() as done:
        ops.scatter(out, at, values)
    assert done.kernels == 0
    assert out.tolist() == [1, 1, 1, 1]
    ops.scatter(out, at, values)
    assert out.tolist() == [0, 0, 0, 0]


@pytest.mark.gpu
def test_on_a_gpu_a_launch_after_it_compiles_nothing() -> None:
    ops = kernels.ops("cuda")
    x = torch.randn(3, 1264, device="cuda")  # a width that no other test compiles for
    gain = torch.ones(1264, device="cuda")
    with compile_ahead() as done:
        ops.rms_norm(x, gain, 1e-5)
    assert done.kernels == 1
    compiled: list[object] = []
    triton.knobs.compilation.listener = lambda **call: compiled.append(call)
    try:
        out = ops.rms_norm(x, gain, 1e-5)
    finally:
        triton.knobs.compilation.listener = None
    assert compiled == []
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (1264,), gain, 1e-5))
