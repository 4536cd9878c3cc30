"""The last step of decode attention: the partial results of a row's splits, merged in order."""

import torch
import triton
import triton.language as tl

from kernels.attention_sizes import FEW, MANY, SPLIT, merge_warps, merged_heads
from kernels.pdl import follow, pdl_options


@triton.jit(do_not_specialize_on_alignment=["context_lens"])
def merge_kernel(
    partial, partial_stats, first_items, context_lens, out,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLIT: tl.constexpr, WHOLE: tl.constexpr,
    TAKEN: tl.constexpr, FEW: tl.constexpr, MANY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    # Not written by decode attention's kernel, which is the one before.
    context = tl.load(context_lens + sequence)
    first = tl.load(first_items + sequence).to(tl.int64)
    follow(PDL)
    if context <= WHOLE:
        return
    splits = tl.cdiv(context, SPLIT)
    head = tl.program_id(1) * TAKEN
    sums = partial + (first * HEADS + head) * HEAD_DIM
    stats = partial_stats + (first * HEADS + head) * 2
    target = out + (sequence.to(tl.int64) * HEADS + head) * HEAD_DIM
    if splits <= FEW:
        merge_few(sums, stats, splits, target, HEADS, HEAD_DIM, TAKEN, FEW)
    else:
        for index in range(TAKEN):
            merge_many(
                sums + index * HEAD_DIM, stats + index * 2, splits, target + index * HEAD_DIM,
                HEADS, HEAD_DIM, MANY,
            )  # fmt: skip


@triton.jit
def add_part(top, total, acc, part_top, part_total, part_sum):
    """Maximum and sum of weights [n, 1] and sum of values [n, d] with one split more. What is
    rounded is said: `kernels.hopper_attention_decode` does the same in registers."""
    new_top = tl.maximum(top, part_top)
    old, new = tl.exp2(top - new_top), tl.exp2(part_top - new_top)
    total = tl.fma(part_total, new, total * old)
    acc = tl.fma(part_sum, new, acc * old)
    return new_top, total, acc


@triton.jit
def merge_few(
    sums, stats, splits, target,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, TAKEN: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Write the lines of TAKEN heads, of up to COUNT partial results. A thread adds up its own
    columns, PIECE of a head at a time: the order is one, however many heads there are."""
    PIECE: tl.constexpr = 4
    PIECES: tl.constexpr = TAKEN * HEAD_DIM // PIECE
    pieces = tl.arange(0, triton.next_power_of_2(PIECES))[:, None]
    inside = pieces < PIECES
    there = tl.where(inside, splits, 0)
    columns = pieces * PIECE + tl.arange(0, PIECE)[None, :]
    own = stats + pieces * PIECE // HEAD_DIM * 2
    top = tl.full(pieces.shape, float("-inf"), tl.float32)
    total = tl.zeros(pieces.shape, tl.float32)
    acc = tl.zeros(columns.shape, tl.float32)
    for part in tl.static_range(COUNT):
        real, place = there > part, own + part * HEADS * 2
        part_top = tl.load(place, mask=real, other=float("-inf"))
        part_total = tl.load(place + 1, mask=real, other=0.0)
        part_sum = tl.load(sums + part * HEADS * HEAD_DIM + columns, mask=real, other=0.0)
        top, total, acc = add_part(top, total, acc, part_top, part_total, part_sum)
    tl.store(target + columns, (acc / total).to(target.dtype.element_ty), mask=inside)


@triton.jit
def merge_many(
    sums, stats, splits, target,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Write a head's line, of `splits` partial results, of which COUNT are added at a time."""
    BLOCK_D: tl.constexpr = triton.next_power_of_2(HEAD_DIM)
    parts, dims = tl.arange(0, COUNT), tl.arange(0, BLOCK_D)
    acc = tl.zeros((BLOCK_D,), tl.float32)
    top, total = float("-inf"), 0.0
    for part in range(0, splits, COUNT):
        real = part + parts < splits
        slots = (part + parts) * HEADS
        part_top = tl.load(stats + slots * 2, mask=real, other=float("-inf"))
        part_total = tl.load(stats + slots * 2 + 1, mask=real, other=0.0)
        values = tl.load(
            sums + slots[:, None] * HEAD_DIM + dims[None, :],
            mask=real[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(part_top, axis=0))
        shrink = tl.exp2(top - new_top)
        weight = tl.exp2(part_top - new_top)
        acc = acc * shrink + tl.sum(values * weight[:, None], axis=0)
        total = total * shrink + tl.sum(part_total * weight, axis=0)
        top = new_top
    tl.store(target + dims, (acc / total).to(target.dtype.element_ty), mask=dims < HEAD_DIM)


def merge_splits(
    partial: torch.Tensor,
    stats: torch.Tensor,
    first_items: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    run: int = 1,
) -> None:
    """Writes the rows of `out` [s, h, d] that have more splits than `run`.

    partial [items, h, d]: weighted sums of values; stats [items, h, 2]: the maximum of the scores
    and the sum of the weights, all fp32. A row's are at first_items [s] and following.
    """
    sequences, heads, head_dim = out.shape
    taken = merged_heads(sequences, heads)
    merge_kernel[(sequences, heads // taken)](
        partial, stats, first_items, context_lens, out,
        HEADS=heads, HEAD_DIM=head_dim, SPLIT=SPLIT, WHOLE=run * SPLIT, TAKEN=taken, FEW=FEW,
        MANY=MANY, num_warps=merge_warps(head_dim), **pdl_options(sequences),
    )  # fmt: skip
