"""A matrix product by a library in parts of its inputs, where it has too few outputs.

That is of more rows than `kernels.skinny_product` takes, and still of fewer tiles of outputs than a
card has multiprocessors for: the parts, as one batched product, fill the rest of it. A library
divides some such products too, but adds their parts up in a kernel of its own; here the kernel
that reads the product does, in order.
"""

import torch
import triton

from kernels.gemv import multiprocessors
from kernels.packed_weight import PackedWeight
from kernels.partial_sums import PartialSums

TILE = 128  # rows, and outputs, of a tile
# From so many inputs on: in so many parts, if a card has room for so many times the tiles
# (measured on an H200).
_PARTS = ((12288, 2, 2), (8192, 4, 4), (4096, 2, 2), (1024, 2, 8))


def count_parts(rows: int, n: int, k: int, programs: int) -> int:
    """Of a product of [rows, k] and [n, k] on a card of so many multiprocessors; 1 if parts do not
    pay. One row stays whole: its next norm is part of a product (`kernels.gemv`) and adds none."""
    if rows < 2:
        return 1
    tiles = triton.cdiv(rows, TILE) * triton.cdiv(n, TILE)
    for inputs, parts, room in _PARTS:
        # A part's lines begin at a multiple of 16 bytes.
        if k >= inputs and room * tiles <= programs and k % (8 * parts) == 0:
            return parts
    return 1


def parts_of(x: torch.Tensor, weight: PackedWeight) -> int:
    """In how many parts to multiply x [t, k]; 1: as it is."""
    if not x.is_cuda or x.element_size() != 2:
        return 1
    return count_parts(x.shape[0], weight.out_features, x.shape[1], multiprocessors(x))


def split_product(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, parts: int
) -> PartialSums:
    """What adds up to x [t, k] times weight [n, k] and `bias` [n]; `parts` divides k."""
    rows, k = x.shape
    x_parts = x.contiguous().view(rows, parts, k // parts).transpose(0, 1)
    weights = weight.data.view(weight.out_features, parts, k // parts).permute(1, 2, 0)
    # A CPU, on which tests multiply fp32, has no product of another type than its inputs'.
    kind = {} if x.dtype == torch.float32 else {"out_dtype": torch.float32}
    return PartialSums(torch.bmm(x_parts, weights, **kind), bias, x.dtype)
