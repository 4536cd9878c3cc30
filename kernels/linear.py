"""Matrix products and what a layer does before and after them; see `kernels.reference`.

One row goes through the fused kernel of `kernels.gemv`, more through the library.
"""

import torch

from kernels.add_bias import add_bias
from kernels.gemv import gemv, takes
from kernels.packed_weight import PackedWeight
from kernels.rms_norm import rms_norm
from kernels.silu_and_mul import silu_and_mul


def pack_weight(weight: torch.Tensor) -> PackedWeight:
    """weight [n, k] as it is."""
    return PackedWeight(weight.shape[0], weight.shape[1], weight.dtype, weight.contiguous())


def linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    if takes(x):
        return gemv(x, weight, bias)
    return torch.nn.functional.linear(x, weight.data, bias)


def norm_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    if takes(x):
        return gemv(x, weight, bias, norm=(gain, eps))
    return linear(rms_norm(x, gain, eps), weight, bias)


def norm_gated_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    if takes(x):
        return gemv(x, weight, bias, norm=(gain, eps), gated=True)
    return silu_and_mul(linear(rms_norm(x, gain, eps), weight, bias))


def add_linear(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, residual: torch.Tensor
) -> torch.Tensor:
    if takes(x):
        return gemv(x, weight, bias, residual=residual)
    if bias is not None:
        add_bias(residual, bias)
    return residual.addmm_(x, weight.data.T)
