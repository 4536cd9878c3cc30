"""Paged decode attention: one query per sequence, read through the block table.

An item of the plan is a sequence's split of SPLIT positions; a program takes every n-th item for a
few neighbouring K/V heads. Their query heads share its loads and one matrix instruction: a query's
line is as long as the heads' lines together and holds zeros beside its own head's. A row of one
split is finished at once; the others leave partial results in fp32, which `kernels.merge_splits`
merges. The order of every sum depends on the row's own context length alone.
"""

import math

import torch
import triton
import triton.language as tl

from kernels.attention_sizes import QUERY_ROWS, SPLIT, decode_tile, packed_heads, run_of
from kernels.attention_tile import add_tile, load_blocks, load_lines
from kernels.decode_plan import ITEM, DecodePlan, plan_decode
from kernels.hopper_attention_decode import hopper_decode, takes
from kernels.launch import INTERPRETED, is_fp32, next_power_of_2
from kernels.merge_splits import merge_splits
from kernels.pdl import follow, pdl_options

# Programs per group of K/V heads: enough to fill a card for one sequence, and an item or two for
# each in a batch of contexts of usual length.
LEAST_WALKERS, WALKERS_PER_SEQUENCE, MOST_WALKERS = 64, 8, 1024


@triton.jit
def decode_kernel(
    q, k_pool, v_pool, block_tables, items, count, out, partial, partial_stats,
    scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr, ITEM: tl.constexpr, TILE: tl.constexpr,
    PACKED: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, UPCAST: tl.constexpr,
    EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if not EARLY:
        follow(PDL)
    STRIDE: tl.constexpr = KV_HEADS * HEAD_DIM
    WIDTH: tl.constexpr = PACKED * HEAD_DIM
    GROUP: tl.constexpr = HEADS // KV_HEADS
    MEMBERS: tl.constexpr = PACKED * GROUP
    first_kv_head = tl.program_id(0) * PACKED
    members, lines = tl.arange(0, BLOCK_G), tl.arange(0, TILE)
    columns = tl.arange(0, BLOCK_D)
    heads = first_kv_head * GROUP + members
    own = (members // GROUP)[:, None] == (columns // HEAD_DIM)[None, :]
    real = (members < MEMBERS)[:, None] & own
    dims = (columns % HEAD_DIM)[None, :]
    keys_of, values_of = k_pool + first_kv_head * HEAD_DIM, v_pool + first_kv_head * HEAD_DIM
    # The first is read before it is known that there is so much to do, which saves a wait.
    walkers, entry = tl.num_programs(1), items + tl.program_id(1) * ITEM
    sequence, split, context, row = load_item(entry, True)
    total_items = tl.load(count)
    there = tl.program_id(1) < total_items
    split, context = tl.where(there, split, 0), tl.where(there, context, 0)
    table = block_tables + row.to(tl.int64) * table_width
    start = split * SPLIT
    end = tl.minimum(start + SPLIT, context)
    blocks = load_blocks(table, start + lines, end, BLOCK_SIZE)
    if EARLY:
        follow(PDL)
    for item in range(tl.program_id(1), total_items, walkers):
        line = (sequence.to(tl.int64) * HEADS + heads)[:, None] * HEAD_DIM + dims
        query = tl.load(q + line, mask=real, other=0.0)
        if UPCAST:
            query = query.to(tl.float32)
        acc, top, total = attend_split(
            query, keys_of, values_of, table, blocks, start, end, columns, scale,
            BLOCK_SIZE, STRIDE, WIDTH, TILE, BLOCK_G, BLOCK_D, UPCAST,
        )  # fmt: skip
        if context <= SPLIT:
            result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
            tl.store(out + line, result.to(out.dtype.element_ty), mask=real)
        else:
            slot = heads.to(tl.int64) + item * HEADS
            tl.store(partial + slot[:, None] * HEAD_DIM + dims, acc, mask=real)
            tl.store(partial_stats + slot * 2, top, mask=members < MEMBERS)
            tl.store(partial_stats + slot * 2 + 1, total, mask=members < MEMBERS)
        entry += walkers * ITEM
        sequence, split, context, row = load_item(entry, item + walkers < total_items)
        table = block_tables + row.to(tl.int64) * table_width
        start = split * SPLIT
        end = tl.minimum(start + SPLIT, context)
        blocks = load_blocks(table, start + lines, end, BLOCK_SIZE)


@triton.jit
def attend_split(
    query, keys_of, values_of, table, blocks, start, end, columns, scale,
    BLOCK_SIZE: tl.constexpr, STRIDE: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Sum of weighted values [g, d], maximum and sum of weights [g] over positions `start` to
    `end`; `blocks` are the first tile's."""
    acc = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
    top = tl.full((BLOCK_G,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_G,), tl.float32)
    lines = tl.arange(0, TILE)
    for tile in range(start, end, TILE):
        positions = tile + lines
        # Read a tile ahead: its pool lines wait for nothing.
        next_blocks = load_blocks(table, positions + TILE, end, BLOCK_SIZE)
        in_block = lines if TILE % BLOCK_SIZE == 0 else positions
        keys = load_lines(
            keys_of, blocks, in_block, positions, end, columns, BLOCK_SIZE, STRIDE, WIDTH, UPCAST
        )
        values = load_lines(
            values_of, blocks, in_block, positions, end, columns, BLOCK_SIZE, STRIDE, WIDTH, UPCAST
        )
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
        scores = tl.where((positions < end)[None, :], scores, float("-inf"))
        acc, top, total = add_tile(scores, values, scale, acc, top, total)
        blocks = next_blocks
    return acc, top, total


@triton.jit
def load_item(entry, there):
    """Sequence, split, context length and row; zeros if it is not there."""
    return (
        tl.load(entry, mask=there, other=0),
        tl.load(entry + 1, mask=there, other=0),
        tl.load(entry + 2, mask=there, other=0),
        tl.load(entry + 3, mask=there, other=0),
    )


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
    Given a `plan`, it, the block tables and what the pools hold before a row's last position are
    read at once: another kernel must have been launched since they were written.
    """
    sequences, heads, head_dim = q.shape
    out = torch.empty_like(q) if out is None else out
    if sequences == 0:
        return out
    early = plan is not None
    if plan is None:
        total = sequences * max_context_len
        plan = plan_decode(k_pool, block_tables, rows, context_lens, total)
    # One split leaves no partial results, and the pointers are never followed.
    split = max_context_len > SPLIT
    kept = (plan.capacity, heads) if split else (0, 0)
    partial = torch.empty((*kept, head_dim), dtype=torch.float32, device=q.device)
    stats = torch.empty((*kept, 2), dtype=torch.float32, device=q.device)
    run = 1
    if takes(q, k_pool, v_pool):
        run = run_of(sequences)
        hopper_decode(
            q, k_pool, v_pool, block_tables, plan, out, partial, stats, scale, early=early
        )
    else:
        _decode(q, k_pool, v_pool, block_tables, plan, out, partial, stats, scale, early=early)
    if split:
        merge_splits(partial, stats, plan.first_items, context_lens, out, run)
    return out


def _decode(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    plan: DecodePlan,
    out: torch.Tensor,
    partial: torch.Tensor,
    stats: torch.Tensor,
    scale: float,
    *,
    early: bool,
) -> None:
    """As `kernels.hopper_attention_decode.hopper_decode`."""
    sequences, heads, head_dim = q.shape
    _, block_size, kv_heads, _ = k_pool.shape
    walkers = max(LEAST_WALKERS, WALKERS_PER_SEQUENCE * sequences)
    walkers = min(walkers, MOST_WALKERS, plan.capacity)
    group = heads // kv_heads
    packed = packed_heads(sequences, kv_heads, group, head_dim)
    decode_kernel[(kv_heads // packed, walkers)](
        q, k_pool, v_pool, block_tables, plan.items, plan.count, out, partial, stats,
        scale * math.log2(math.e), block_tables.shape[1],
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, SPLIT=SPLIT,
        ITEM=ITEM, PACKED=packed, BLOCK_G=max(QUERY_ROWS, next_power_of_2(packed * group)),
        BLOCK_D=packed * next_power_of_2(head_dim), UPCAST=INTERPRETED, EARLY=early,
        **decode_tile(head_dim, is_fp32(q)), **pdl_options(sequences),
    )  # fmt: skip
