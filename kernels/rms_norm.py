"""RMS norm, with the residual addition fused in: one program normalizes one token."""

import torch
import triton
import triton.language as tl

from kernels.launch import next_power_of_2


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, new_residual, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    base = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    value = tl.load(x + base + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        value += tl.load(residual + base + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(new_residual.dtype.element_ty)
        tl.store(new_residual + base + columns, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / WIDTH + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + base + columns, (value * scale * gain).to(out.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `kernels.reference.rms_norm`."""
    out = torch.empty_like(x)
    if x.shape[0]:
        _launch(x, x, weight, out, out, eps, has_residual=False)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.reference.add_rms_norm`."""
    out, new_residual = torch.empty_like(x), torch.empty_like(x)
    if x.shape[0]:
        _launch(x, residual, weight, out, new_residual, eps, has_residual=True)
    return out, new_residual


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    new_residual: torch.Tensor,
    eps: float,
    has_residual: bool,
) -> None:
    tokens, width = x.shape
    block = next_power_of_2(width)
    rms_norm_kernel[(tokens,)](
        x, residual, weight, out, new_residual, eps,
        WIDTH=width, BLOCK=block, HAS_RESIDUAL=has_residual,
        num_warps=max(1, min(block // 512, 16)),
    )  # fmt: skip
