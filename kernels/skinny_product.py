"""A matrix product of a few rows, whose time is that of reading the weight.

A program has a tile of outputs; where these are few, the inputs are divided too, until there is
about a program for each multiprocessor, with as much on its way as shared memory holds. Each part
then leaves its sums in fp32, and the kernel that reads the product adds them in order. The weight
is the instructions' first operand: those of a warp group take 64 of its lines, and as few rows as
there are.
"""

import torch
import triton
import triton.language as tl

from kernels.gemv import multiprocessors
from kernels.launch import INTERPRETED, next_power_of_2
from kernels.packed_weight import PackedWeight
from kernels.partial_sums import PartialSums
from kernels.pdl import follow, pdl_options

MOST_ROWS = 64
# Outputs and inputs at a time (measured on an H200).
BLOCK_N, BLOCK_K = 64, 64


@triton.jit
def add_tile(lines, columns, x_tile, acc, UPCAST: tl.constexpr):
    """acc [n, m] plus the product of a tile of weights with x_tile [m, k]."""
    tile = tl.load(lines[:, None] + columns[None, :])
    if UPCAST:
        tile = tile.to(tl.float32)
    return tl.dot(tile, tl.trans(x_tile), acc, input_precision="ieee")


@triton.jit(do_not_specialize=["m"])
def skinny_product_kernel(
    x, weight, bias, out, m, n,
    K: tl.constexpr, STRETCH: tl.constexpr, PARTIAL: tl.constexpr, GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    features = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens, columns = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    start = tl.program_id(1) * STRETCH
    # Past the last line of the weight its values are read again, and their results dropped.
    lines = weight + tl.minimum(features, n - 1).to(tl.int64) * K
    up_lines = weight + (tl.minimum(features, n - 1).to(tl.int64) + n) * K
    x_lines = x + tokens[:, None] * K
    here = (tokens < m)[:, None]
    follow(PDL)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up = acc
    length = STRETCH if K % STRETCH == 0 else tl.minimum(STRETCH, K - start)
    for step in range(0, length, BLOCK_K):
        first = start + step
        x_tile = tl.load(x_lines + (first + columns)[None, :], mask=here, other=0.0)
        if UPCAST:
            x_tile = x_tile.to(tl.float32)
        acc = add_tile(lines, first + columns, x_tile, acc, UPCAST)
        if GATED:
            up = add_tile(up_lines, first + columns, x_tile, up, UPCAST)
    acc, up = tl.trans(acc), tl.trans(up)
    real = here & (features < n)[None, :]
    places = tokens[:, None] * n + features[None, :]
    if PARTIAL:
        tl.store(out + tl.program_id(1) * m.to(tl.int64) * n + places, acc, mask=real)
    else:
        dtype = out.dtype.element_ty
        if HAS_BIAS:
            offset = tl.load(bias + features, mask=features < n, other=0.0)
            acc += offset.to(tl.float32)[None, :]
            if GATED:
                offset = tl.load(bias + n + features, mask=features < n, other=0.0)
                up += offset.to(tl.float32)[None, :]
        if GATED:
            # Rounded where the activation, as a kernel of its own, would read them.
            gate = acc.to(dtype).to(tl.float32)
            acc = gate / (1.0 + tl.exp(-gate)) * up.to(dtype).to(tl.float32)
        tl.store(out + places, acc.to(dtype), mask=real)


def takes(x: torch.Tensor) -> bool:
    """Whether `skinny_product` is the way to multiply x [t, k]."""
    rows, k = x.shape
    return x.is_cuda and 2 <= rows <= MOST_ROWS and x.element_size() == 2 and k % BLOCK_K == 0


def stages(rows: int, gated: bool) -> int:
    """Blocks of inputs on their way; more than 6 of two tiles hold up the kernels around."""
    return 6 if gated and rows > 16 else 8


def skinny_product(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    partial: bool = False,
) -> torch.Tensor | PartialSums:
    """x [t, k] -> [t, n], k in whole blocks; `gated`: silu of the first half of the outputs times
    the second, [t, n / 2]; `partial`: what adds up to it."""
    rows, k = x.shape
    n = weight.out_features // 2 if gated else weight.out_features
    tiles, splits, stretch = triton.cdiv(n, BLOCK_N), 1, k
    if partial:
        stretch = triton.cdiv(k // BLOCK_K, max(1, multiprocessors(x) // tiles)) * BLOCK_K
        splits = triton.cdiv(k, stretch)
    shape, dtype = ((splits, rows, n), torch.float32) if partial else ((rows, n), x.dtype)
    out = torch.empty(shape, dtype=dtype, device=x.device)
    skinny_product_kernel[(tiles, splits)](
        x.contiguous(), weight.data, x if bias is None else bias, out, rows, n,
        K=k, STRETCH=stretch, PARTIAL=partial, GATED=gated,
        HAS_BIAS=bias is not None and not partial,
        BLOCK_M=max(16, next_power_of_2(rows)), BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K,
        UPCAST=INTERPRETED, num_warps=4, num_stages=stages(rows, gated), **pdl_options(rows),
    )  # fmt: skip
    return PartialSums(out, bias, x.dtype) if partial else out
