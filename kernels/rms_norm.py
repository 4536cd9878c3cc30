"""RMS norm: one program normalizes one token."""

import torch
import triton
import triton.language as tl

from kernels.launch import next_power_of_2
from kernels.pdl import follow, pdl_options


@triton.jit
def rms_norm_kernel(
    x, gain, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    base = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    weights = tl.load(gain + columns, mask=inside, other=0.0).to(tl.float32)
    follow(PDL)
    value = tl.load(x + base + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / WIDTH + eps)
    tl.store(out + base + columns, (value * scale * weights).to(out.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `kernels.reference.rms_norm`."""
    out = torch.empty_like(x)
    tokens, width = x.shape
    if tokens:
        block = next_power_of_2(width)
        rms_norm_kernel[(tokens,)](
            x, weight, out, eps, WIDTH=width, BLOCK=block,
            num_warps=max(1, min(block // 512, 16)), **pdl_options(tokens),
        )  # fmt: skip
    return out
