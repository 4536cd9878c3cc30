"""The last step of decode attention: the partial results of a row's splits, merged in order."""

import torch
import triton
import triton.language as tl

from kernels.attention_sizes import FEW, MANY, SPLIT
from kernels.launch import next_power_of_2
from kernels.pdl import follow, pdl_options


@triton.jit(do_not_specialize_on_alignment=["context_lens"])
def merge_kernel(
    partial, partial_stats, first_items, context_lens, out,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLIT: tl.constexpr,
    FEW: tl.constexpr, MANY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    # Not written by decode_kernel, which is the one before.
    context = tl.load(context_lens + sequence)
    first = tl.load(first_items + sequence).to(tl.int64)
    follow(PDL)
    if context <= SPLIT:
        return
    GROUP: tl.constexpr = HEADS // KV_HEADS
    BLOCK_H: tl.constexpr = triton.next_power_of_2(GROUP)
    BLOCK_D: tl.constexpr = triton.next_power_of_2(HEAD_DIM)
    first_head = tl.program_id(1) * GROUP
    heads, dims = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    splits = tl.cdiv(context, SPLIT)
    sums = partial + (first * HEADS + first_head) * HEAD_DIM
    stats = partial_stats + (first * HEADS + first_head) * 2
    acc = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
    top = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    if splits <= FEW:
        acc, top, total = merge_parts(
            sums, stats, 0, splits, heads, dims, acc, top, total, HEADS, HEAD_DIM, GROUP, FEW
        )
    else:
        for part in range(0, splits, MANY):
            acc, top, total = merge_parts(
                sums, stats, part, splits, heads, dims, acc, top, total,
                HEADS, HEAD_DIM, GROUP, MANY,
            )  # fmt: skip
    result = acc / tl.where(heads < GROUP, total, 1.0)[:, None]
    target = (sequence.to(tl.int64) * HEADS + first_head + heads)[:, None] * HEAD_DIM
    tl.store(out + target + dims[None, :], result.to(out.dtype.element_ty),
             mask=(heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :])  # fmt: skip


@triton.jit
def merge_parts(
    sums, stats, first, end, heads, dims, acc, top, total,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, GROUP: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Add COUNT partial results from `first` on, but none from `end` on, to acc [h, d], top [h] and
    total [h]."""
    # In this order of axes a thread holds all the parts of its dims, and adds them alone.
    parts = first + tl.arange(0, COUNT)
    slots = heads[:, None] + (parts * HEADS)[None, :]
    real = (heads < GROUP)[:, None] & (parts < end)[None, :]
    # Finite, so that a padded head, of which all is masked, is not -inf less -inf.
    part_top = tl.load(stats + slots * 2, mask=real, other=-1e30)
    part_total = tl.load(stats + slots * 2 + 1, mask=real, other=0.0)
    values = tl.load(
        sums + slots[:, :, None] * HEAD_DIM + dims[None, None, :],
        mask=real[:, :, None] & (dims < HEAD_DIM)[None, None, :],
        other=0.0,
    )
    new_top = tl.maximum(top, tl.max(part_top, axis=1))
    shrink = tl.exp2(top - new_top)
    weight = tl.exp2(part_top - new_top[:, None])
    acc = acc * shrink[:, None] + tl.sum(values * weight[:, :, None], axis=1)
    total = total * shrink + tl.sum(part_total * weight, axis=1)
    return acc, new_top, total


def merge_splits(
    partial: torch.Tensor,
    stats: torch.Tensor,
    first_items: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    kv_heads: int,
) -> None:
    """Writes the rows of `out` [s, h, d] that have several splits.

    partial [items, h, d]: weighted sums of values; stats [items, h, 2]: the maximum of the scores
    and the sum of the weights, all fp32. A row's are at first_items [s] and following.
    """
    sequences, heads, head_dim = out.shape
    values = next_power_of_2(heads // kv_heads) * next_power_of_2(head_dim)
    merge_kernel[(sequences, kv_heads)](
        partial, stats, first_items, context_lens, out,
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, SPLIT=SPLIT, FEW=FEW, MANY=MANY,
        num_warps=min(max(values // 128, 1), 4), **pdl_options(sequences),
    )  # fmt: skip
