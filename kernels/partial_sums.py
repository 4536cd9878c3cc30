"""A product whose inputs were divided among programs: the kernel that reads it adds the parts."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class PartialSums:
    """What adds up to a product [t, n] of `dtype`: parts [splits, t, n] fp32, then bias [n]."""

    parts: torch.Tensor
    bias: torch.Tensor | None
    dtype: torch.dtype


@triton.jit
def sum_parts(parts, places, mask, size, SPLITS: tl.constexpr):
    """parts [SPLITS, size] at `places`, added in order."""
    total = tl.load(parts + places, mask=mask, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(parts + split * size + places, mask=mask, other=0.0)
    return total
