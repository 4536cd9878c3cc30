"""A linear layer's weight in the form that one face of the op table multiplies with."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class PackedWeight:
    """Made once at load by a face's `pack_weight`, read only by the same face's `linear`.

    `data` is opaque: a tensor or several, which the face may have reordered, so that strides and
    bytes mean nothing outside.
    """

    out_features: int
    in_features: int
    dtype: torch.dtype
    data: Any
