"""Products of the CPU face in bfloat16 and float32 by its own compiled kernel, where the processor
can.

What stands before and behind a product is done with it: a step of a small model would else spend
half its time in calls between them.
"""

from importlib import import_module
from types import ModuleType

import llvmlite.binding
import torch
from numba.core import config

from kernels import amx
from kernels.amx import DEPTH, LINES
from kernels.compiled import address, empty, float_bits, has, launch
from kernels.cpu_row_ops import norm, rms_norm
from kernels.packed_weight import PackedWeight

_CHUNK = 128  # rows of an item
_NORMED = 1 << 14  # numbers that every thread normalizes for itself


def chosen() -> dict[torch.dtype, str]:
    """What multiplies numbers of a dtype on this processor: bfloat16 "amx" by its tiles, "pairs" by
    AVX512-BF16 or "floats" by fused products and sums of AVX-512 or AVX2, float32 "fp32" by these.

    An Intel core takes nearly twice as long for two products at once in AVX512-BF16 as for two
    fused ones; on AMD's a library multiplies bfloat16 so 2.3 times as fast as float32.
    """
    names = {}
    if has("avx2", "fma"):
        names = {torch.bfloat16: "floats", torch.float32: "fp32"}
    processor = config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    if has("avx512bf16") and processor.startswith("znver"):
        names[torch.bfloat16] = "pairs"
    if amx.is_available():
        names[torch.bfloat16] = "amx"
    return names


def instructions(name: str) -> ModuleType:
    """The kernel of a choice, and how it is launched."""
    return import_module(f"kernels.cpu_product_{name}")


INSTRUCTIONS = {dtype: instructions(name) for dtype, name in chosen().items()}


def takes(weight: torch.Tensor) -> bool:
    """Whether a kernel multiplies by it: none has code for what is left of a tile."""
    n, k = weight.shape
    return weight.dtype in INSTRUCTIONS and n % (2 * LINES) == 0 and k % DEPTH == 0


def packed(weight: PackedWeight) -> bool:
    """Whether its data is what `pack` makes."""
    return isinstance(weight.data, torch.Tensor)


def pack(weight: torch.Tensor) -> torch.Tensor:
    """weight [n, k] -> bfloat16 [n / 16, k / 32, 16, 16, 2] or float32 [n / 16, k, 16]."""
    n, k = weight.shape
    if weight.dtype == torch.float32:
        return weight.detach().view(n // LINES, LINES, k).transpose(1, 2).contiguous()
    tiles = weight.detach().view(n // LINES, LINES, k // DEPTH, DEPTH // 2, 2)
    return tiles.permute(0, 2, 3, 1, 4).contiguous()


def multiply(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gain: torch.Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    rounded: bool = True,
) -> torch.Tensor:
    """x [t, k] -> [t, n]: normalized before with a gain, plus a bias and a residual, and with
    `gated` the first half of the columns activated times the second half. In fp32 unless `rounded`.
    Raises ValueError and TypeError for an x that is not of the weight's width, of another dtype or
    not contiguous."""
    rows, k = x.shape
    if k != weight.in_features:
        raise ValueError(f"x has {k} columns, must have the weight's {weight.in_features}")
    dtype, n = weight.dtype, weight.out_features // (2 if gated else 1)
    kernel = INSTRUCTIONS[dtype]
    out = empty((rows, n), dtype if rounded else torch.float32)
    if rows == 0:
        return out
    if gain is not None and x.numel() >= _NORMED:
        x, gain = rms_norm(x, gain, eps), None
    columns = kernel.most_columns(rows, n // LINES, torch.get_num_threads())
    launch(
        kernel.product,
        -(-n // (LINES * columns)) * -(-rows // _CHUNK),
        weight.out_features * k,
        rows,
        k,
        n,
        address(x, dtype),
        weight.data.data_ptr(),
        0 if bias is None else address(bias, dtype),
        0 if residual is None else address(residual, dtype),
        address(out, out.dtype),
        int(gated),
        0 if gain is None else norm.address,
        0 if gain is None else address(gain, dtype),
        float_bits(eps),
        columns,
        _CHUNK,
        int(rounded),
    )
    return out
