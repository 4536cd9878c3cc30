"""What compiled kernels of the CPU face are made of."""

import ctypes
import errno
import fcntl
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from numba import cfunc
from numba.core.bytecode import FunctionIdentity

import kernels
from kernels import compiled, cpu_numbers
from kernels.compiled import inner, inner_of
from tests.kernels.cases import randn
from tests.waiting import SECONDS

OPS = kernels.ops("cpu", "cpu")


@inner
def _narrowed(kind: int, numbers: np.ndarray, out: np.ndarray) -> None:
    cpu_numbers.narrow(out.ctypes.data, kind, numbers)


@inner
def _widened(kind: int, numbers: np.ndarray, out: np.ndarray) -> None:
    cpu_numbers.widen(numbers.ctypes.data, kind, out.size, out.ctypes.data)


@inner
def _exponentials(numbers: np.ndarray) -> None:
    for i in range(numbers.size):
        numbers[i] = cpu_numbers.exp(numbers[i])


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number_of_16_bits_is_read_as_torch_reads_it(dtype: torch.dtype) -> None:
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    out = torch.empty(2**16)
    _widened(cpu_numbers.KINDS[dtype], bits(numbers).numpy(), out.numpy())
    torch.testing.assert_close(out, numbers.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_floats_are_rounded_as_torch_rounds_them(dtype: torch.dtype) -> None:
    # Every number, all halves between two, what lies just beside those, and random ones.
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).float()
    numbers = numbers[numbers.isfinite()].sort().values
    halves = (numbers[1:].double() + numbers[:-1].double()).div(2).float()
    edges = bits(halves)
    near = torch.cat((edges - 1, edges + 1)).view(torch.float32)
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 65519.9, 65520.0, 3.4e38])
    many = randn(100_000, dtype=torch.float32) * 10 ** randn(100_000, dtype=torch.float32, seed=2)
    cases = torch.cat((numbers, halves, near, special, many))
    out = torch.empty(len(cases), dtype=dtype)
    _narrowed(cpu_numbers.KINDS[dtype], cases.numpy(), bits(out).view(torch.uint16).numpy())
    torch.testing.assert_close(out, cases.to(dtype), rtol=0, atol=0, equal_nan=True)
    zeros = cases == 0
    assert torch.equal(bits(out[zeros]), bits(cases[zeros].to(dtype)))


def test_exponentials_are_exact_to_two_last_places() -> None:
    x = torch.linspace(-86.9, 88.2, 1_000_001)
    out = x.clone()
    _exponentials(out.numpy())
    exact = x.double().exp()
    assert ((out.double() - exact) / exact).abs().max() < 2.0**-22
    ends = torch.tensor([-float("inf"), -1e30, -88.0, 0.0, 89.0, float("inf"), float("nan")])
    _exponentials(ends.numpy())
    assert ends[:6].tolist() == [0.0, 0.0, 0.0, 1.0, float("inf"), float("inf")]
    assert ends[6].isnan()


def test_what_is_not_finite_stays_in_its_row() -> None:
    x = randn(3, 576, dtype=torch.bfloat16)
    clean = OPS.rms_norm(x, torch.ones_like(x[0]), 1e-5)
    for bad in (float("nan"), float("inf")):
        x[1, 70] = bad
        out = OPS.rms_norm(x, torch.ones_like(x[0]), 1e-5)
        assert out[1].isnan().any()
        assert torch.equal(out[::2], clean[::2])
        gated = OPS.silu_and_mul(x)
        assert not gated[1].isfinite().all()
        assert gated[::2].isfinite().all()


def test_a_tensor_of_another_kind_is_refused() -> None:
    x = randn(4, 64, dtype=torch.float32)
    with pytest.raises(TypeError, match=r"torch.bfloat16 \(64,\).* must be of torch.float32"):
        OPS.rms_norm(x, torch.ones(64, dtype=torch.bfloat16), 1e-5)
    with pytest.raises(TypeError, match=r"strides \(1, 4\) must be of torch.float32 and contig"):
        OPS.silu_and_mul(x.t().contiguous().t())


def test_threads_share_the_items_and_change_no_bit() -> None:
    x, weight = randn(300, 576, dtype=torch.float32), randn(576, dtype=torch.float32, seed=2)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(OPS.rms_norm(x, weight, 1e-5))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_compiled_code_is_kept_where_the_user_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compiled._cache_folder().parent == tmp_path / ".cache" / "nanoserve"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert compiled._cache_folder().parent == tmp_path / "cache" / "nanoserve"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "mine"))
    assert compiled._cache_folder().parent == tmp_path / "mine" / "nanoserve"
    assert list(compiled._FOLDER.rglob("*.nbc"))


def test_kernels_run_where_nothing_can_be_kept(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    code = """
import torch
from kernels import compiled, cpu_row_ops
assert compiled._FOLDER is None
print(cpu_row_ops.rms_norm(torch.full((1, 4), 3.0), torch.ones(4), 0.0).tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"NUMBA_CACHE_DIR": str(blocked)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[[1.0, 1.0, 1.0, 1.0]]\n"


def _one(arguments: Any) -> None:
    arguments[1] = 1


def result_of(entry: compiled.Kernel) -> int:
    """What it writes to its first argument, by a launch of one thread."""
    arguments = np.zeros(4, np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(entry.address)(arguments.ctypes.data)
    return int(arguments[1])


def no_room(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_process_waits_for_one_that_compiles_the_same_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled, "_FOLDER", tmp_path)
    done: list[bool] = []

    def compile_too() -> None:
        entry = compiled.Kernel(_one)
        assert result_of(entry) == 1
        done.append(entry._compiled.cache_hits == 1)

    with (tmp_path / f"{__name__}._one.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=compile_too)
        waiting.start()
        kept = cfunc(compiled._SIGNATURE, error_model="numpy", cache=True)(_one)
        assert kept.cache_hits == 0
        assert not done
    waiting.join(SECONDS)
    assert done == [True]


def test_a_process_that_stands_still_as_it_compiles_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled, "_FOLDER", tmp_path)
    monkeypatch.setattr(compiled, "_PATIENCE_SECONDS", 0.05)
    with (tmp_path / f"{__name__}._one.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert result_of(compiled.Kernel(_one)) == 1


@pytest.mark.parametrize("trouble", ["a full disk", "a cut index", "cut code"])
def test_kernels_run_whatever_is_wrong_with_what_is_kept(
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    if trouble == "a full disk":
        monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_data", no_room)
    else:
        assert result_of(compiled.Kernel(_one)) == 1
        (file,) = tmp_path.rglob("*.nbi" if trouble == "a cut index" else "*.nbc")
        file.write_bytes(b"")
        assert not caplog.records
    assert result_of(compiled.Kernel(_one)) == 1
    (record,) = caplog.records
    assert "not kept" in record.getMessage()
    assert str(compiled._FOLDER) in record.getMessage()


def _counter(kernel: str, value: int) -> Any:
    """Too large to become a part of what calls it."""

    @inner_of(kernel)
    def count(n: int) -> int:
        return value if n <= 0 else 3 * count(n - 1) + count(n - 2)

    return count


_count, _count_twice = _counter("count", 1), _counter("count twice", 2)


def _counted(arguments: Any) -> None:
    arguments[1] = _count(arguments[2] + 4)


def _counted_twice(arguments: Any) -> None:
    arguments[1] = _count_twice(arguments[2] + 4)


def test_kernels_that_two_processes_keep_are_each_their_own_in_a_third(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    for is_kept in (False, True):
        entries = []
        for function in (_counted, _counted_twice):
            # A process gives each function that it compiles a number.
            monkeypatch.setattr(FunctionIdentity, "_unique_ids", itertools.count(10**6))
            entries.append(compiled.Kernel(function))
            assert entries[-1]._compiled.cache_hits == is_kept
        assert [result_of(entry) for entry in entries] == [142, 284]


def test_other_sources_have_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folders = set()
    for text in ("one", "other", "one"):
        (tmp_path / "kernel.py").write_text(text)
        monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
        folders.add(compiled._cache_folder())
    assert len(folders) == 2
