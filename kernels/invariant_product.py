"""A matrix product whose sums have one order, however many rows it has.

An input is cut into stretches by its width alone. A stretch is a chain of matrix instructions from
zero, each of which adds 16 products to a sum; stretches are added in order; all in fp32. Tiles, and
whether stretches are computed beside or after each other, are chosen by the number of rows and move
no bit: on a Hopper card both kinds of matrix instructions (mma.sync of small tiles, wgmma of large
ones) add in one way (Xie et al. 2025, arXiv 2511.10909). A worker tries that at its start.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.invariant_tiles import tile_config
from kernels.launch import INTERPRETED, is_fp32
from kernels.packed_weight import PackedWeight
from kernels.pdl import follow, pdl_options

# An input as wide is cut into 4 stretches, which fill a card where the outputs are few.
WIDE, STRETCHES, STRETCH_UNIT = 8192, 4, 512
# Up to so many rows the stretches of a tile are computed beside each other, of so many tiles.
MOST_SPREAD_ROWS, MOST_SPREAD_TILES = 512, 4096
GROUP = 8  # tiles of rows that share each tile of weights while it is in the cache


@dataclass(frozen=True)
class CountedWeight:
    """What `PackedWeight.data` is. `arrived` int32 [tiles], zeros between launches: how many
    stretches of a tile are computed."""

    weight: torch.Tensor
    arrived: torch.Tensor


@triton.jit
def add_stretch(
    x_lines, gate_lines, up_lines, here, start, end,
    GATED: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Columns `start` to `end` of the products with the gate's and the up lines (GATED), or with
    the gate's alone, twice; fp32 [BLOCK_M, BLOCK_N] each."""
    columns = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = acc
    for first in range(start, end, BLOCK_K):
        # Always true, and so no mask in the compiled kernel, where tiles fill the stretch.
        inside = (first + columns < end) | EVEN
        x_tile = tl.load(
            x_lines[:, None] + (first + columns)[None, :],
            mask=here[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        tile = tl.load(
            gate_lines[None, :] + (first + columns)[:, None], mask=inside[:, None], other=0.0
        )
        if UPCAST:
            x_tile, tile = x_tile.to(tl.float32), tile.to(tl.float32)
        acc = tl.dot(x_tile, tile, acc, input_precision="ieee")
        if GATED:
            tile = tl.load(
                up_lines[None, :] + (first + columns)[:, None], mask=inside[:, None], other=0.0
            )
            if UPCAST:
                tile = tile.to(tl.float32)
            up = tl.dot(x_tile, tile, up, input_precision="ieee")
    return acc, up


@triton.jit
def finish_tile(
    acc, up, bias, residual, features, places, inside, n, dtype: tl.constexpr,
    GATED: tl.constexpr, HAS_BIAS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """What comes after the sums: bias, activation, residual; fp32 [BLOCK_M, BLOCK_N]."""
    if HAS_BIAS:
        acc += tl.load(bias + features, mask=features < n, other=0.0).to(tl.float32)[None, :]
        if GATED:
            up += tl.load(bias + n + features, mask=features < n, other=0.0).to(tl.float32)[None, :]
    if GATED:
        # Rounded where the activation, as a kernel of its own, would read them.
        gate = acc.to(dtype).to(tl.float32)
        acc = gate / (1.0 + tl.exp(-gate)) * up.to(dtype).to(tl.float32)
    if ADD:
        acc = acc.to(dtype).to(tl.float32)
        acc += tl.load(residual + places, mask=inside, other=0.0).to(tl.float32)
    return acc


@triton.jit(do_not_specialize=["m"])
def invariant_product_kernel(
    x, weight, bias, residual, out, partial, arrived, m, n, k, stretch,
    STRETCHES: tl.constexpr, SPREAD: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr,
    ADD: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    first_m = tl.program_id(0) // (GROUP * tiles_n) * GROUP
    place_in_group = tl.program_id(0) % (GROUP * tiles_n)
    group = tl.minimum(tiles_m - first_m, GROUP)
    tokens = (first_m + place_in_group % group) * BLOCK_M + tl.arange(0, BLOCK_M)
    features = place_in_group // group * BLOCK_N + tl.arange(0, BLOCK_N)
    here = tokens < m
    inside = here[:, None] & (features < n)[None, :]
    places = tokens.to(tl.int64)[:, None] * n + features[None, :]
    x_lines = x + tokens.to(tl.int64) * k
    # Past the last line of the weight its values are read again, and their results dropped.
    gate_lines = weight + tl.minimum(features, n - 1).to(tl.int64) * k
    up_lines = weight + (tl.minimum(features, n - 1).to(tl.int64) + n) * k
    follow(PDL)
    if SPREAD:
        start = tl.program_id(1) * stretch
        acc, up = add_stretch(
            x_lines, gate_lines, up_lines, here, start, tl.minimum(start + stretch, k),
            False, EVEN, BLOCK_M, BLOCK_N, BLOCK_K, UPCAST,
        )  # fmt: skip
        size = m.to(tl.int64) * n
        tl.store(partial + tl.program_id(1) * size + places, acc, mask=inside)
        # All threads have stored before one of them counts, and it counts before any loads.
        tl.debug_barrier()
        if tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") != STRETCHES - 1:
            return
        tl.store(arrived + tl.program_id(0), 0)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for other in tl.static_range(STRETCHES):
            acc += tl.load(
                partial + other * size + places, mask=inside, other=0.0, cache_modifier=".cg"
            )
    else:
        acc, up = add_stretch(
            x_lines, gate_lines, up_lines, here, 0, tl.minimum(stretch, k),
            GATED, EVEN, BLOCK_M, BLOCK_N, BLOCK_K, UPCAST,
        )  # fmt: skip
        for other in range(1, STRETCHES):
            more, more_up = add_stretch(
                x_lines, gate_lines, up_lines, here,
                other * stretch, tl.minimum((other + 1) * stretch, k),
                GATED, EVEN, BLOCK_M, BLOCK_N, BLOCK_K, UPCAST,
            )  # fmt: skip
            acc += more
            up += more_up
    acc = finish_tile(
        acc, up, bias, residual, features, places, inside, n, out.dtype.element_ty,
        GATED, HAS_BIAS, ADD,
    )  # fmt: skip
    tl.store(out + places, acc.to(out.dtype.element_ty), mask=inside)


def count_stretches(width: int) -> tuple[int, int]:
    """(how many, their length) for an input of `width` columns."""
    if width < WIDE:
        return 1, width
    length = triton.cdiv(triton.cdiv(width, STRETCHES), STRETCH_UNIT) * STRETCH_UNIT
    return triton.cdiv(width, length), length


def pack_weight(weight: torch.Tensor) -> PackedWeight:
    """weight [n, k] as it is, and counters where its product is spread."""
    n, k = weight.shape
    tiles = MOST_SPREAD_TILES if k >= WIDE else 0
    arrived = torch.zeros(tiles, dtype=torch.int32, device=weight.device)
    return PackedWeight(n, k, weight.dtype, CountedWeight(weight.contiguous(), arrived))


def invariant_product(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [t, k] -> [t, n]; `gated`: silu of the first half of the outputs times the second,
    [t, n / 2]; `residual` [t, n] is added."""
    rows, k = x.shape
    n = weight.out_features // 2 if gated else weight.out_features
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    stretches, length = count_stretches(k)
    config = tile_config(rows, weight.out_features * stretches, gated, is_fp32(x))
    tiles = triton.cdiv(rows, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"])
    spread = stretches > 1 and not gated and rows <= MOST_SPREAD_ROWS and tiles <= MOST_SPREAD_TILES
    kept = stretches * rows * n if spread else 0
    partial = torch.empty(kept, dtype=torch.float32, device=x.device)
    step = config["BLOCK_K"]
    invariant_product_kernel[(tiles, stretches if spread else 1)](
        x.contiguous(), weight.data.weight, x if bias is None else bias,
        x if residual is None else residual, out, partial, weight.data.arrived, rows, n, k, length,
        STRETCHES=stretches, SPREAD=spread, GATED=gated, HAS_BIAS=bias is not None,
        ADD=residual is not None, EVEN=k % step == 0 and length % step == 0, GROUP=GROUP,
        UPCAST=INTERPRETED, **config, **pdl_options(rows),
    )  # fmt: skip
    return out
