"""Paged decode attention: one query per sequence, read through the block table.

An item of the plan is a sequence's split of SPLIT positions; a program takes every n-th item for
one K/V head. The query heads of a K/V head share its loads, padded to the 16 rows of a matrix
instruction. A row of one split is finished at once; the others leave partial results in fp32,
which a second kernel merges. The order of every sum depends on the row's own context length alone.
"""

import math

import torch
import triton
import triton.language as tl

from kernels.attention_tile import add_tile, load_tile
from kernels.decode_plan import ITEM, SPLIT, DecodePlan, plan_decode
from kernels.launch import INTERPRETED, is_fp32, next_power_of_2
from kernels.pdl import follow, pdl_options

# Partial results merged at a time. Which of the two depends on the row's own count alone, so that,
# as with the split, no neighbour changes the order of a sum.
FEW, MANY = 4, 32
# Programs per K/V head: enough to fill a card for one sequence, and an item or two for each in a
# batch of contexts of usual length.
LEAST_WALKERS, WALKERS_PER_SEQUENCE, MOST_WALKERS = 64, 4, 1024


@triton.jit
def decode_kernel(
    q, k_pool, v_pool, block_tables, items, count, out, partial, partial_stats,
    scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr, ITEM: tl.constexpr, TILE: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, UPCAST: tl.constexpr, EARLY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if not EARLY:
        follow(PDL)
    kv_head = tl.program_id(0)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    members = tl.arange(0, BLOCK_G)
    heads = kv_head * GROUP + members
    dims = tl.arange(0, BLOCK_D)
    real = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    # The first is read before it is known that there is so much to do, which saves a wait.
    walkers, entry = tl.num_programs(1), items + tl.program_id(1) * ITEM
    sequence, split = tl.load(entry), tl.load(entry + 1)
    context, row = tl.load(entry + 2), tl.load(entry + 3)
    total_items = tl.load(count)
    if EARLY:
        follow(PDL)
    for item in range(tl.program_id(1), total_items, walkers):
        start = split * SPLIT
        end = tl.minimum(start + SPLIT, context)
        table = block_tables + row.to(tl.int64) * table_width
        offsets = (sequence.to(tl.int64) * HEADS + heads[:, None]) * HEAD_DIM + dims[None, :]
        query = tl.load(q + offsets, mask=real, other=0.0)
        if UPCAST:
            query = query.to(tl.float32)

        acc = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
        top = tl.full((BLOCK_G,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_G,), tl.float32)
        for tile in range(start, end, TILE):
            positions = tile + tl.arange(0, TILE)
            keys = load_tile(
                k_pool, table, kv_head, positions, end, dims,
                BLOCK_SIZE, KV_HEADS, HEAD_DIM, True, UPCAST,
            )  # fmt: skip
            values = load_tile(
                v_pool, table, kv_head, positions, end, dims,
                BLOCK_SIZE, KV_HEADS, HEAD_DIM, True, UPCAST,
            )  # fmt: skip
            visible = (positions < end)[None, :]
            acc, top, total = add_tile(query, keys, values, visible, scale, acc, top, total, True)

        if context <= SPLIT:
            result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
            tl.store(out + offsets, result.to(out.dtype.element_ty), mask=real)
        else:
            slot = heads.to(tl.int64) + item * HEADS
            tl.store(partial + slot[:, None] * HEAD_DIM + dims[None, :], acc, mask=real)
            tl.store(partial_stats + slot * 2, top, mask=members < GROUP)
            tl.store(partial_stats + slot * 2 + 1, total, mask=members < GROUP)
        entry += walkers * ITEM
        more = item + walkers < total_items
        sequence = tl.load(entry, mask=more, other=0)
        split = tl.load(entry + 1, mask=more, other=0)
        context = tl.load(entry + 2, mask=more, other=0)
        row = tl.load(entry + 3, mask=more, other=0)


@triton.jit(do_not_specialize_on_alignment=["context_lens"])
def merge_kernel(
    partial, partial_stats, first_items, context_lens, out,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLIT: tl.constexpr,
    FEW: tl.constexpr, MANY: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1)
    # Not written by decode_kernel, which is the one before.
    context = tl.load(context_lens + sequence)
    first = tl.load(first_items + sequence).to(tl.int64)
    follow(PDL)
    if context <= SPLIT:
        return
    dims = tl.arange(0, BLOCK_D)
    splits = tl.cdiv(context, SPLIT)
    part_sums = partial + (first * HEADS + head) * HEAD_DIM
    part_stats = partial_stats + (first * HEADS + head) * 2
    acc = tl.zeros((BLOCK_D,), tl.float32)
    top = float("-inf")
    total = 0.0
    if splits <= FEW:
        acc, top, total = merge_parts(
            part_sums, part_stats, 0, splits, dims, acc, top, total, HEADS, HEAD_DIM, FEW
        )
    else:
        for part in range(0, splits, MANY):
            acc, top, total = merge_parts(
                part_sums, part_stats, part, splits, dims, acc, top, total, HEADS, HEAD_DIM, MANY
            )
    result = (acc / total).to(out.dtype.element_ty)
    tl.store(out + (sequence.to(tl.int64) * HEADS + head) * HEAD_DIM + dims, result,
             mask=dims < HEAD_DIM)  # fmt: skip


@triton.jit
def merge_parts(
    part_sums, part_stats, first, end, dims, acc, top, total,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Add COUNT partial results from `first` on, but none from `end` on, to acc [d], top, total."""
    parts = first + tl.arange(0, COUNT)
    real = parts < end
    part_top = tl.load(part_stats + parts * HEADS * 2, mask=real, other=float("-inf"))
    part_total = tl.load(part_stats + parts * HEADS * 2 + 1, mask=real, other=0.0)
    values = tl.load(
        part_sums + (parts * HEADS * HEAD_DIM)[:, None] + dims[None, :],
        mask=real[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    new_top = tl.maximum(top, tl.max(part_top, axis=0))
    shrink = tl.exp2(top - new_top)
    weight = tl.exp2(part_top - new_top)
    acc = acc * shrink + tl.sum(values * weight[:, None], axis=0)
    total = total * shrink + tl.sum(part_total * weight, axis=0)
    return acc, new_top, total


def tile_config(head_dim: int, fp32: bool) -> dict[str, int]:
    """Positions per tile, warps and pipeline stages, by shape alone (measured on an H200)."""
    if head_dim > 128:
        return {"TILE": 16 if fp32 else 32, "num_warps": 4, "num_stages": 2}
    if fp32:
        return {"TILE": 32, "num_warps": 4, "num_stages": 2}
    return {"TILE": 128, "num_warps": 4, "num_stages": 2}


def paged_attention_decode(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    *,
    max_context_len: int,
    plan: DecodePlan | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `kernels.reference.paged_attention_decode`; max_context_len bounds what is kept.

    A sequence of a negative context length is none, and its place in `out` stays as it is.
    A given `plan` is read at once: another kernel must have been launched since it was made.
    """
    sequences, heads, head_dim = q.shape
    _, block_size, kv_heads, _ = k_pool.shape
    out = torch.empty_like(q) if out is None else out
    if sequences == 0:
        return out
    early = plan is not None
    if plan is None:
        total = sequences * max_context_len
        plan = plan_decode(k_pool, block_tables, rows, context_lens, total)
    split = max_context_len > SPLIT
    # One split leaves no partial results, and the pointers are never followed.
    kept = (plan.capacity, heads) if split else (0, 0)
    partial = torch.empty((*kept, head_dim), dtype=torch.float32, device=q.device)
    stats = torch.empty((*kept, 2), dtype=torch.float32, device=q.device)
    walkers = max(LEAST_WALKERS, WALKERS_PER_SEQUENCE * sequences)
    walkers = min(walkers, MOST_WALKERS, plan.capacity)
    block_d = next_power_of_2(head_dim)
    decode_kernel[(kv_heads, walkers)](
        q, k_pool, v_pool, block_tables, plan.items, plan.count, out, partial, stats,
        scale * math.log2(math.e), block_tables.shape[1],
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, SPLIT=SPLIT,
        ITEM=ITEM, BLOCK_G=max(16, next_power_of_2(heads // kv_heads)), BLOCK_D=block_d,
        UPCAST=INTERPRETED, EARLY=early, **tile_config(head_dim, is_fp32(q)),
        **pdl_options(sequences),
    )  # fmt: skip
    if split:
        merge_kernel[(sequences, heads)](
            partial, stats, plan.first_items, context_lens, out,
            HEADS=heads, HEAD_DIM=head_dim, SPLIT=SPLIT, FEW=FEW, MANY=MANY,
            BLOCK_D=block_d, num_warps=1 if head_dim <= 64 else 2,
            **pdl_options(sequences),
        )  # fmt: skip
    return out
