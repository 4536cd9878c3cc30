"""A linear layer's weight in the form that one face of the op table multiplies with."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PackedWeight:
    """Made once at load by a face's `pack_weight`, read only by the same face's `linear`.

    `data` is opaque: the face may have reordered it, so its strides and bytes mean nothing outside.
    """

    out_features: int
    in_features: int
    dtype: torch.dtype
    data: torch.Tensor
