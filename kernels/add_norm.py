"""A product's sums added to the residual, and the RMS norm of it: one program for one token."""

import torch
import triton
import triton.language as tl

from kernels.launch import next_power_of_2
from kernels.partial_sums import PartialSums, sum_parts
from kernels.pdl import follow_eagerly, pdl_options


@triton.jit(do_not_specialize=["rows"])
def add_norm_kernel(
    residual, parts, bias, gain, out, rows, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    inside = (columns < WIDTH) | (WIDTH == BLOCK)
    places = tl.program_id(0).to(tl.int64) * WIDTH + columns
    weights = tl.load(gain + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        offset = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    # Not written by the product, which is the kernel before.
    before = tl.load(residual + places, mask=inside, other=0.0)
    follow_eagerly(PDL)
    added = sum_parts(parts, places, inside, rows.to(tl.int64) * WIDTH, SPLITS)
    if HAS_BIAS:
        added += offset
    # Rounded where the product, as a kernel of its own, would leave it.
    value = (before.to(tl.float32) + added.to(before.dtype).to(tl.float32)).to(before.dtype)
    tl.store(residual + places, value, mask=inside)
    value = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / WIDTH + eps)
    tl.store(out + places, (value * scale * weights).to(out.dtype.element_ty), mask=inside)


def add_norm(
    residual: torch.Tensor, added: PartialSums, gain: torch.Tensor, eps: float
) -> torch.Tensor:
    """residual [t, w] += added; its RMS norm [t, w], for the product, which is launched next."""
    splits, rows, width = added.parts.shape
    out = torch.empty_like(residual)
    if rows:
        block = next_power_of_2(width)
        add_norm_kernel[(rows,)](
            residual, added.parts, residual if added.bias is None else added.bias, gain, out, rows,
            eps, WIDTH=width, BLOCK=block, SPLITS=splits, HAS_BIAS=added.bias is not None,
            num_warps=max(1, min(block // 256, 16)), **pdl_options(rows),
        )  # fmt: skip
    return out
