"""Matrix products, and what a layer does before and after them, for `invariant_product`; see
`kernels.reference`."""

import torch

from kernels.invariant_product import invariant_product
from kernels.packed_weight import PackedWeight
from kernels.rms_norm import rms_norm


def linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    return invariant_product(x, weight, bias)


def norm_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    return invariant_product(rms_norm(x, gain, eps), weight, bias)


def norm_gated_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    return invariant_product(rms_norm(x, gain, eps), weight, bias, gated=True)


def add_linear(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, residual: torch.Tensor
) -> torch.Tensor:
    return invariant_product(x, weight, bias, residual=residual)
