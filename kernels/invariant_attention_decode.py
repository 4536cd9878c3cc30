"""Paged decode attention as `kernels.paged_attention_decode`, with the sums of
`kernels.invariant_split`."""

import math

import torch
import triton
import triton.language as tl

from kernels.decode_plan import ITEM, SPLIT, DecodePlan, plan_decode
from kernels.invariant_split import LEAST, attend_split, merge_split, sums_of, tile_size
from kernels.launch import INTERPRETED, is_fp32, next_power_of_2
from kernels.pdl import follow, pdl_options

# Programs per K/V head: enough to fill a card for one sequence, and an item or two for each in a
# batch of contexts of usual length.
LEAST_WALKERS, WALKERS_PER_SEQUENCE, MOST_WALKERS = 64, 4, 1024
PARTS = 8  # partial results loaded at a time; they are merged one by one


@triton.jit
def invariant_decode_kernel(
    q, k_pool, v_pool, block_tables, items, count, out, partial, partial_stats,
    scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr, ITEM: tl.constexpr, TILE: tl.constexpr,
    BLOCK_M: tl.constexpr, SUMS: tl.constexpr, BLOCK_D: tl.constexpr, UPCAST: tl.constexpr,
    EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if not EARLY:
        follow(PDL)
    kv_head = tl.program_id(0)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    members = tl.arange(0, BLOCK_M)
    heads = kv_head * GROUP + members
    dims = tl.arange(0, BLOCK_D)
    real = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    walkers, entry = tl.num_programs(1), items + tl.program_id(1) * ITEM
    sequence, split = tl.load(entry), tl.load(entry + 1)
    context, row = tl.load(entry + 2), tl.load(entry + 3)
    total_items = tl.load(count)
    if EARLY:
        follow(PDL)
    for item in range(tl.program_id(1), total_items, walkers):
        table = block_tables + row.to(tl.int64) * table_width
        offsets = (sequence.to(tl.int64) * HEADS + heads[:, None]) * HEAD_DIM + dims[None, :]
        query = tl.load(q + offsets, mask=real, other=0.0)
        if UPCAST:
            query = query.to(tl.float32)
        start = split * SPLIT
        end = tl.minimum(start + SPLIT, context)
        last_seen = tl.zeros((BLOCK_M,), tl.int32) + context - 1
        acc, top, total = attend_split(
            query, k_pool, v_pool, table, kv_head, start, end, last_seen, dims, scale,
            BLOCK_SIZE, KV_HEADS, HEAD_DIM, TILE, BLOCK_M, SUMS, BLOCK_D, UPCAST,
        )  # fmt: skip
        if context <= SPLIT:
            # Zeros for a context of nothing.
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
def invariant_merge_kernel(
    partial, partial_stats, first_items, context_lens, out,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLIT: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1) + tl.arange(0, 1)
    # Not written by the decode kernel, which is the one before.
    context = tl.load(context_lens + sequence)
    first = tl.load(first_items + sequence).to(tl.int64)
    follow(PDL)
    if context <= SPLIT:
        return
    dims = tl.arange(0, BLOCK_D)[None, :]
    acc = tl.zeros((1, BLOCK_D), tl.float32)
    top = tl.full((1,), LEAST, tl.float32)
    total = tl.zeros((1,), tl.float32)
    splits = tl.cdiv(context, SPLIT)
    for start in range(0, splits, PARTS):
        for part in tl.static_range(PARTS):
            # What there is not adds exactly nothing.
            index = start + part + tl.arange(0, 1)
            real = index < splits
            slot = (first + index) * HEADS + head
            split_top = tl.load(partial_stats + slot * 2, mask=real, other=LEAST)
            split_total = tl.load(partial_stats + slot * 2 + 1, mask=real, other=0.0)
            split_acc = tl.load(
                partial + slot[:, None] * HEAD_DIM + dims,
                mask=real[:, None] & (dims < HEAD_DIM), other=0.0,
            )  # fmt: skip
            acc, top, total = merge_split(acc, top, total, split_acc, split_top, split_total)
    place = (sequence.to(tl.int64) * HEADS + head)[:, None] * HEAD_DIM + dims
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + place, result, mask=dims < HEAD_DIM)


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
    """See `kernels.paged_attention_decode`."""
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
    block_m, block_d = max(16, next_power_of_2(heads // kv_heads)), next_power_of_2(head_dim)
    invariant_decode_kernel[(kv_heads, walkers)](
        q, k_pool, v_pool, block_tables, plan.items, plan.count, out, partial, stats,
        scale * math.log2(math.e), block_tables.shape[1],
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, SPLIT=SPLIT,
        ITEM=ITEM, TILE=tile_size(head_dim, is_fp32(q)), BLOCK_M=block_m,
        SUMS=sums_of(block_m, is_fp32(q)), BLOCK_D=block_d, UPCAST=INTERPRETED,
        EARLY=early, num_warps=4, num_stages=2, **pdl_options(sequences),
    )  # fmt: skip
    if split:
        invariant_merge_kernel[(sequences, heads)](
            partial, stats, plan.first_items, context_lens, out,
            HEADS=heads, HEAD_DIM=head_dim, SPLIT=SPLIT, PARTS=PARTS,
            BLOCK_D=block_d, num_warps=1 if head_dim <= 64 else 2, **pdl_options(sequences),
        )  # fmt: skip
    return out
