"""The matrix product of one input row, where a library's kernel leaves bandwidth unused.

A program keeps the whole input in registers and walks output features, so every weight is read
once, in order, and summed in fp32. What comes before and after a product in a layer is fused: the
RMS norm of the input, SwiGLU's activation of two features' outputs, the addition of the residual.
More rows than one take matrix instructions (`kernels.skinny_product`).
"""

import torch
import triton
import triton.language as tl

from kernels.launch import next_power_of_2
from kernels.packed_weight import PackedWeight
from kernels.pdl import follow, pdl_options

MOST_COLUMNS = 16384  # of an input that registers hold


@triton.jit
def load_rows(weight, features, end, columns, inside, K: tl.constexpr):
    """Lines `features` of the weight [r, k], zeros from line `end` on."""
    lines = weight + features.to(tl.int64)[:, None] * K
    mask = (features < end)[:, None] & inside[None, :]
    return tl.load(lines + columns[None, :], mask=mask, other=0.0)


@triton.jit
def gemv_kernel(
    x, gain, weight, bias, residual, out, n, eps,
    K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr, ADD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK_K)
    # Always true, and so no mask in the compiled kernel, where the input fills its tile.
    inside = (columns < K) | (K == BLOCK_K)
    step = tl.num_programs(0) * ROWS
    features = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # Weights are on their way while the kernel before this one ends.
    tile = load_rows(weight, features, n, columns, inside, K)
    if GATED:
        up_tile = load_rows(weight, features + n, 2 * n, columns, inside, K)
    if NORM:
        weights = tl.load(gain + columns, mask=inside, other=0.0).to(tl.float32)
    follow(PDL)
    value = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(value * value, axis=0) / K + eps)
        value = (value * scale * weights).to(x.dtype.element_ty).to(tl.float32)
    dtype = out.dtype.element_ty
    for _ in range(tl.program_id(0) * ROWS, n, step):
        real = features < n
        following = features + step
        next_tile = load_rows(weight, following, n, columns, inside, K)
        total = tl.sum(tile.to(tl.float32) * value[None, :], axis=1)
        tile = next_tile
        if GATED:
            next_up = load_rows(weight, following + n, 2 * n, columns, inside, K)
            up = tl.sum(up_tile.to(tl.float32) * value[None, :], axis=1)
            up_tile = next_up
        if HAS_BIAS:
            total += tl.load(bias + features, mask=real, other=0.0).to(tl.float32)
            if GATED:
                up += tl.load(bias + n + features, mask=real, other=0.0).to(tl.float32)
        if GATED:
            # Rounded where the activation, as a kernel of its own, would read them.
            total = total.to(dtype).to(tl.float32)
            total = total / (1.0 + tl.exp(-total)) * up.to(dtype).to(tl.float32)
        if ADD:
            total = total.to(dtype).to(tl.float32)
            total += tl.load(residual + features, mask=real, other=0.0).to(tl.float32)
        tl.store(out + features, total.to(dtype), mask=real)
        features = following


def tile_config(n: int, k: int, gated: bool) -> dict[str, int]:
    """Features at a time, warps and programs per multiprocessor, by shape alone (measured on an
    H200)."""
    if k > 8192:
        return {"ROWS": 1, "num_warps": 8, "per_sm": 4}
    if k > 4096:
        return {"ROWS": 2, "num_warps": 16, "per_sm": 2}
    if gated or n > 32768:
        return {"ROWS": 1, "num_warps": 4, "per_sm": 16}
    if k > 2048:
        return {"ROWS": 2, "num_warps": 8, "per_sm": 4}
    return {"ROWS": 2, "num_warps": 4, "per_sm": 6}


def takes(x: torch.Tensor) -> bool:
    """Whether `gemv` is the way to multiply x [t, k]."""
    return x.is_cuda and x.shape[0] == 1 and x.shape[1] <= MOST_COLUMNS


def gemv(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    *,
    norm: tuple[torch.Tensor, float] | None = None,
    gated: bool = False,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [1, k], first normed by (gain [k], eps) -> [1, n]; `gated`: silu of the first half times
    the second, [1, n / 2]; `residual` [1, n] is added."""
    k = weight.in_features
    n = weight.out_features // 2 if gated else weight.out_features
    out = torch.empty((1, n), dtype=x.dtype, device=x.device)
    config = tile_config(n, k, gated)
    programs = min(triton.cdiv(n, config["ROWS"]), config.pop("per_sm") * multiprocessors(x))
    gain, eps = norm or (x, 0.0)
    gemv_kernel[(programs,)](
        x, gain, weight.data, x if bias is None else bias, x if residual is None else residual,
        out, n, eps,
        K=k, BLOCK_K=next_power_of_2(k), NORM=norm is not None, GATED=gated,
        HAS_BIAS=bias is not None, ADD=residual is not None, **config, **pdl_options(1),
    )  # fmt: skip
    return out


def multiprocessors(x: torch.Tensor) -> int:
    """Of the tensor's device; 1 in the interpreter."""
    if not x.is_cuda:
        return 1
    return torch.cuda.get_device_properties(x.device).multi_processor_count
