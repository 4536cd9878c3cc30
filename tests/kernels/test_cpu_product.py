"""The CPU face's own products: exact but for the last rounding, and bit for bit their own row's."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import kernels
from kernels import amx, cpu_product, vector
from kernels.compiled import config, inner
from tests.kernels import instructions
from tests.kernels.cases import randn

OPS = kernels.ops("cpu", "cpu")
# On both sides of a block of rows, of a chunk of them, and of what each thread normalizes itself.
COUNTS = [1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 127, 129, 160, 161, 299]


@pytest.fixture(params=instructions.INSTRUCTIONS)
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    return instructions.use(request.param, monkeypatch)


@pytest.mark.parametrize(("n", "k"), [(32, 32), (96, 160), (960, 576), (64, 2080)])
@pytest.mark.parametrize("rows", [1, 16, 17, 33, 130, 300])
def test_a_product_is_the_exact_one_rounded(dtype: torch.dtype, n: int, k: int, rows: int) -> None:
    x, weight = randn(rows, k, dtype=dtype), randn(n, k, dtype=dtype, seed=2)
    bias = 10 * randn(n, dtype=dtype, seed=3)
    packed = OPS.pack_weight(weight)
    assert cpu_product.packed(packed)
    exact = x.double() @ weight.double().T
    # What sums in float32 may lose, and half of a last place of the result.
    slack = 2.0**-22 * (x.double().abs() @ weight.double().abs().T)
    place = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-23
    residual = 10 * randn(rows, n, dtype=dtype, seed=4)
    for more in ({}, {"bias": bias}, {"residual": residual}, {"bias": bias, "residual": residual}):
        wanted = exact + sum(part.double() for part in more.values())
        out = OPS.linear(x, packed, **more).double()
        assert ((out - wanted).abs() <= slack + place * wanted.abs()).all(), more.keys()


def test_norm_and_activation_are_those_of_their_own_kernels(dtype: torch.dtype) -> None:
    x, gain = 3 * randn(299, 576, dtype=dtype), randn(576, dtype=dtype, seed=2)
    packed = OPS.pack_weight(randn(192, 576, dtype=dtype, seed=3) / 24)
    bias = randn(192, dtype=dtype, seed=4)
    whole = OPS.linear(OPS.rms_norm(x, gain, 1e-5), packed, bias)
    gated, close = OPS.silu_and_mul(whole), 2.0**-7 if dtype == torch.bfloat16 else 2.0**-21
    for count in COUNTS:
        for rows in (slice(0, count), slice(-count, None)):
            assert torch.equal(OPS.norm_linear(x[rows], gain, 1e-5, packed, bias), whole[rows])
            mine = OPS.norm_gated_linear(x[rows], gain, 1e-5, packed, bias)
            torch.testing.assert_close(mine, gated[rows], rtol=close, atol=1e-30)


def test_logits_are_the_sums_unrounded(dtype: torch.dtype) -> None:
    x, gain = 3 * randn(299, 96, dtype=dtype), randn(96, dtype=dtype, seed=2)
    weight = randn(224, 96, dtype=dtype, seed=3)
    packed = OPS.pack_weight(weight)
    normed = OPS.rms_norm(x, gain, 1e-5).double()
    whole = OPS.logits(x, gain, 1e-5, packed)
    assert whole.dtype == torch.float32
    # Products of float32 are rounded too.
    slack = 2.0 ** (-22 if dtype == torch.bfloat16 else -21)
    slack *= normed.abs() @ weight.double().abs().T
    assert ((whole - normed @ weight.double().T).abs() <= slack).all()
    assert torch.equal(whole.to(dtype), OPS.norm_linear(x, gain, 1e-5, packed))
    for count in COUNTS:
        for rows in (slice(0, count), slice(-count, None)):
            assert torch.equal(OPS.logits(x[rows], gain, 1e-5, packed), whole[rows])


@pytest.mark.parametrize("inner_size", [16, 48, 96])
def test_a_gated_row_does_not_depend_on_the_row_count(dtype: torch.dtype, inner_size: int) -> None:
    x, gain = 3 * randn(299, 96, dtype=dtype), randn(96, dtype=dtype, seed=2)
    packed = OPS.pack_weight(randn(2 * inner_size, 96, dtype=dtype, seed=3) / 10)
    whole = OPS.norm_gated_linear(x, gain, 1e-5, packed)
    assert whole.isfinite().all()
    for count in COUNTS:
        for rows in (slice(0, count), slice(-count, None)):
            assert torch.equal(OPS.norm_gated_linear(x[rows], gain, 1e-5, packed), whole[rows])


@pytest.mark.parametrize("rows", [1, 40, 300])
def test_threads_share_the_products_and_change_no_bit(dtype: torch.dtype, rows: int) -> None:
    x, gain = randn(rows, 576, dtype=dtype), randn(576, dtype=dtype, seed=2)
    packed = OPS.pack_weight(randn(960, 576, dtype=dtype, seed=3))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 9):  # so many that an item is one column
            torch.set_num_threads(threads)
            results.append(OPS.norm_linear(x, gain, 1e-5, packed))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_what_is_not_finite_stays_in_its_row(dtype: torch.dtype) -> None:
    x = randn(40, 64, dtype=dtype)
    packed = OPS.pack_weight(randn(64, 64, dtype=dtype, seed=2))
    clean = OPS.linear(x, packed)
    for bad in (float("nan"), float("inf")):
        x[20, 5] = bad
        out = OPS.linear(x, packed)
        assert not out[20].isfinite().any()
        assert torch.equal(out[:20], clean[:20])
        assert torch.equal(out[21:], clean[21:])


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.float16, (64, 64)),
        *((dtype, shape) for dtype in cpu_product.INSTRUCTIONS for shape in ((48, 64), (64, 48))),
    ],
)
def test_other_weights_are_left_to_the_library(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, weight = randn(5, shape[1], dtype=dtype), randn(*shape, dtype=dtype, seed=2)
    packed = OPS.pack_weight(weight)
    assert not cpu_product.packed(packed)
    torch.testing.assert_close(OPS.linear(x, packed), x @ weight.T, rtol=1e-2, atol=1e-2)


def test_an_input_of_another_width_or_dtype_is_refused(dtype: torch.dtype) -> None:
    packed = OPS.pack_weight(randn(64, 64, dtype=dtype))
    with pytest.raises(ValueError, match="x has 32 columns, must have the weight's 64"):
        OPS.linear(randn(3, 32, dtype=dtype), packed)
    with pytest.raises(TypeError, match=f"must be of {dtype} and contiguous"):
        OPS.linear(randn(3, 64, dtype=torch.float16), packed)
    assert OPS.linear(randn(3, 64, dtype=dtype)[:0], packed).shape == (0, 64)


def _refuses(*_: object) -> int:
    return -1


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (amx.sys, "platform", "darwin"),
        (amx.platform, "machine", lambda: "aarch64"),
        (config, "CPU_FEATURES", "+avx512f,-amx-tile,+amx-bf16"),
        (ctypes.CDLL, "__getattr__", lambda _library, _name: _refuses),
    ],
    ids=["system", "machine", "features", "permission"],
)
def test_tiles_are_used_only_where_all_allow_it(
    monkeypatch: pytest.MonkeyPatch, place: object, name: str, value: str | Callable[..., object]
) -> None:
    monkeypatch.setattr(place, name, value)
    assert not amx.is_available.__wrapped__()


@pytest.mark.parametrize(
    ("tiles", "features", "name", "chosen"),
    [
        (True, "+avx2,+fma,+avx512f,+avx512bf16", "sapphirerapids", ("amx", "fp32")),
        (False, "+avx2,+fma,+avx512f,+avx512bf16", "sapphirerapids", ("floats", "fp32")),
        (False, "+avx2,+fma,+avx512f,+avx512bf16", "znver4", ("pairs", "fp32")),
        (False, "+avx2,+fma,+avx512f,-avx512bf16", "znver4", ("floats", "fp32")),
        (False, "+avx2,+fma", "znver3", ("floats", "fp32")),
        (False, "+avx2,-fma", "haswell", ()),
        (False, "+neon", "apple-m1", ()),
    ],
)
def test_a_processor_multiplies_by_the_fastest_it_has(
    monkeypatch: pytest.MonkeyPatch,
    tiles: bool,
    features: str,
    name: str,
    chosen: tuple[str, ...],
) -> None:
    monkeypatch.setattr(amx, "is_available", lambda: tiles)
    monkeypatch.setattr(config, "CPU_FEATURES", features)
    monkeypatch.setattr(config, "CPU_NAME", name)
    dtypes = (torch.bfloat16, torch.float32)
    assert cpu_product.chosen() == dict(zip(dtypes, chosen, strict=False))


_OTHER_PROCESS = """
import sys, torch
from kernels import cpu_product, vector_product
from kernels.packed_weight import PackedWeight
assert cpu_product.INSTRUCTIONS[torch.bfloat16].__name__ == "kernels.cpu_product_floats"
assert (vector_product.COLUMNS, vector_product.ROWS) == (1, 4)
made = []
for x, weight in torch.load(sys.argv[1]):
    packed = PackedWeight(*weight.shape, weight.dtype, cpu_product.pack(weight))
    made.append([cpu_product.multiply(x[:rows], packed) for rows in (1, 2, 7, 35)])
torch.save(made, sys.argv[2])
"""


def test_a_processor_with_short_vectors_gives_the_bits_of_one_with_long_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dtypes = [instructions.use(name, monkeypatch) for name in ("floats", "fp32")]
    # In float32 of more than one sum.
    given = [(randn(35, 224, dtype=dtype), randn(96, 224, dtype=dtype, seed=2)) for dtype in dtypes]
    wholes = [OPS.linear(x, OPS.pack_weight(weight)) for x, weight in given]
    torch.save(given, tmp_path / "given")
    features = [part for part in config.CPU_FEATURES.split(",") if part[1:4] not in ("avx", "amx")]
    limits = {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": ",".join([*features, "+avx,+avx2"]),
    }
    files = [str(tmp_path / name) for name in ("given", "made")]
    command = [sys.executable, "-c", _OTHER_PROCESS, *files]
    subprocess.run(command, env=os.environ | limits, check=True)
    for whole, parts in zip(wholes, torch.load(tmp_path / "made"), strict=True):
        for part in parts:
            assert torch.equal(part, whole[: len(part)])


@inner
def _round(numbers: np.ndarray, out: np.ndarray) -> None:
    for i in range(0, numbers.size, vector.LANES):
        number = vector.rounded(vector.load(numbers.ctypes.data, i))
        vector.store_bfloat16(out.ctypes.data, i, number)


def test_vectors_are_rounded_as_torch_rounds_them() -> None:
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).float()
    bits = numbers.view(torch.int32)
    # All halves between two numbers, and what lies just beside those.
    cases = torch.cat([(bits + more).view(torch.float32) for more in (0, 0x7FFF, 0x8000, 0x8001)])
    out = torch.empty(len(cases), dtype=torch.bfloat16)
    _round(cases.numpy(), out.view(torch.int16).numpy().view(np.uint16))
    torch.testing.assert_close(out, cases.bfloat16(), rtol=0, atol=0, equal_nan=True)
