"""Matrix products and what a layer does before and after them; see `kernels.reference`.

One row goes through the fused kernel of `kernels.gemv`, a few through that of
`kernels.skinny_product`, more through the library, in parts (`kernels.split_product`) where it has
too few outputs to fill a card. The sums that a product in parts leaves are added up by the kernel
that reads it: rope's, or the norm's after an addition to the residual.
"""

from dataclasses import dataclass

import torch

from kernels.add_bias import add_bias
from kernels.add_norm import add_norm
from kernels.gemv import gemv, takes
from kernels.packed_weight import PackedWeight
from kernels.partial_sums import PartialSums
from kernels.rms_norm import rms_norm
from kernels.silu_and_mul import silu_and_mul
from kernels.skinny_product import skinny_product
from kernels.skinny_product import takes as few
from kernels.split_product import parts_of, split_product


@dataclass(frozen=True)
class Unsummed:
    """A residual [t, h] to which the norm that reads it adds `pending`, in place."""

    lines: torch.Tensor
    pending: PartialSums


def pack_weight(weight: torch.Tensor) -> PackedWeight:
    """weight [n, k] as it is."""
    return PackedWeight(weight.shape[0], weight.shape[1], weight.dtype, weight.contiguous())


def summed(residual: torch.Tensor | Unsummed) -> torch.Tensor:
    return residual.lines if isinstance(residual, Unsummed) else residual


def norm(x: torch.Tensor | Unsummed, gain: torch.Tensor, eps: float) -> torch.Tensor:
    if isinstance(x, Unsummed):
        return add_norm(x.lines, x.pending, gain, eps)
    return rms_norm(x, gain, eps)


def linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    if takes(x):
        return gemv(x, weight, bias)
    if few(x):
        return skinny_product(x, weight, bias)
    return torch.nn.functional.linear(x, weight.data, bias)


def norm_linear(
    x: torch.Tensor | Unsummed,
    gain: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    if takes(summed(x)):
        return gemv(summed(x), weight, bias, norm=(gain, eps))
    return linear(norm(x, gain, eps), weight, bias)


def norm_qkv(
    x: torch.Tensor | Unsummed,
    gain: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor | PartialSums:
    if few(summed(x)):
        return skinny_product(norm(x, gain, eps), weight, bias, partial=True)
    return norm_linear(x, gain, eps, weight, bias)


def norm_gated_linear(
    x: torch.Tensor | Unsummed,
    gain: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    if takes(summed(x)):
        return gemv(summed(x), weight, bias, norm=(gain, eps), gated=True)
    if few(summed(x)):
        return skinny_product(norm(x, gain, eps), weight, bias, gated=True)
    return silu_and_mul(linear(norm(x, gain, eps), weight, bias))


def add_linear(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, residual: torch.Tensor
) -> torch.Tensor | Unsummed:
    if takes(x):
        return gemv(x, weight, bias, residual=residual)
    if few(x):
        return Unsummed(residual, skinny_product(x, weight, bias, partial=True))
    if (parts := parts_of(x, weight)) > 1:
        return Unsummed(residual, split_product(x, weight, bias, parts))
    if bias is not None:
        add_bias(residual, bias)
    return residual.addmm_(x, weight.data.T)
