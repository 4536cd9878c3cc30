"""The skinny matrix product: one input row, where a library's kernel leaves bandwidth unused.

A program owns a few output features and walks the input in tiles, so every weight is read once, in
order, and summed in fp32. More rows than one are the library's: a matrix-instruction kernel of this
size only equals it.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import next_power_of_2
from kernels.packed_weight import PackedWeight


@triton.jit
def gemv_kernel(
    x, weight, bias, out, n,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    features = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = features < n
    columns = tl.arange(0, BLOCK_K)
    lines = weight + features.to(tl.int64)[:, None] * K
    acc = tl.zeros((ROWS, BLOCK_K), tl.float32)
    for start in range(0, K, BLOCK_K):
        here = start + columns
        # Always true, and so no mask in the compiled kernel, where tiles fit.
        inside = (here < K) | (K % BLOCK_K == 0)
        value = tl.load(x + here, mask=inside, other=0.0).to(tl.float32)
        mask = real[:, None] & inside[None, :]
        tile = tl.load(lines + here[None, :], mask=mask, other=0.0).to(tl.float32)
        acc += tile * value[None, :]
    total = tl.sum(acc, axis=1)
    if HAS_BIAS:
        total += tl.load(bias + features, mask=real, other=0.0).to(tl.float32)
    tl.store(out + features, total.to(out.dtype.element_ty), mask=real)


def tile_config(k: int) -> dict[str, int]:
    """Output features per program, input tile and warps, by shape alone (measured on an H200)."""
    if k <= 2048:
        return {"ROWS": 1, "BLOCK_K": min(next_power_of_2(k), 1024), "num_warps": 4}
    return {"ROWS": 1, "BLOCK_K": 2048, "num_warps": 8}


def pack_weight(weight: torch.Tensor) -> PackedWeight:
    """weight [n, k] as it is."""
    return PackedWeight(weight.shape[0], weight.shape[1], weight.dtype, weight.contiguous())


def linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """See `kernels.reference.linear`."""
    if x.is_cuda and x.shape[0] == 1:
        return gemv(x, weight, bias)
    return torch.nn.functional.linear(x, weight.data, bias)


def gemv(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """x [1, k] -> [1, n]."""
    n, k = weight.out_features, weight.in_features
    out = torch.empty((1, n), dtype=x.dtype, device=x.device)
    config = tile_config(k)
    gemv_kernel[(triton.cdiv(n, config["ROWS"]),)](
        x, weight.data, out if bias is None else bias, out, n,
        K=k, HAS_BIAS=bias is not None, **config,
    )  # fmt: skip
    return out
