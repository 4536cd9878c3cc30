"""SwiGLU's activation: one program makes a stretch of one token's outputs."""

import torch
import triton
import triton.language as tl

from kernels.pdl import follow, pdl_options

BLOCK = 1024


@triton.jit
def silu_and_mul_kernel(
    gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    follow(PDL)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    row = gate_up + token * 2 * WIDTH
    gate = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(row + WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + token * WIDTH + columns, value.to(out.dtype.element_ty), mask=inside)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `kernels.reference.silu_and_mul`."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    if tokens:
        grid = (tokens, triton.cdiv(width, BLOCK))
        silu_and_mul_kernel[grid](
            gate_up, out, WIDTH=width, BLOCK=BLOCK, num_warps=4,
            **pdl_options(tokens),
        )  # fmt: skip
    return out
