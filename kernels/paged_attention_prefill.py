"""Paged prefill attention: ragged causal queries over history and new tokens, read from the pool.

A program takes one K/V head and an item of the plan, a tile of a sequence's queries; the rows of
the tile are (query, head of the group) pairs, so that the group shares every load. Tiles of
positions that all the queries see are read without a mask; only the tiles that cross the diagonal
are masked.
"""

import math

import torch
import triton
import triton.language as tl

from kernels.attention_tile import add_tile, load_tile
from kernels.launch import INTERPRETED, is_fp32, next_power_of_2
from kernels.prefill_plan import ITEM, PrefillPlan, list_tiles


@triton.jit
def prefill_kernel(
    q, k_pool, v_pool, block_tables, items, count, out, scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ITEM: tl.constexpr, TILE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    # Read before it is known that there is so much to do, which saves a wait.
    entry = items + tl.program_id(0) * ITEM
    first_token, num_queries = tl.load(entry), tl.load(entry + 1)
    first_position, row = tl.load(entry + 2), tl.load(entry + 3)
    if tl.program_id(0) >= tl.load(count):
        return
    kv_head = tl.program_id(1)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    table = block_tables + row.to(tl.int64) * table_width

    members = tl.arange(0, BLOCK_M)
    queries = members // GROUP
    heads = kv_head * GROUP + members % GROUP
    dims = tl.arange(0, BLOCK_D)
    real = (queries < num_queries)[:, None] & (dims < HEAD_DIM)[None, :]
    tokens = (first_token + queries).to(tl.int64)
    offsets = (tokens[:, None] * HEADS + heads[:, None]) * HEAD_DIM + dims[None, :]
    query = tl.load(q + offsets, mask=real, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)

    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    end = first_position + num_queries
    seen_by_all = (first_position + 1) // TILE * TILE
    for tile in range(0, seen_by_all, TILE):
        positions = tile + tl.arange(0, TILE)
        keys = load_tile(
            k_pool, table, kv_head, positions, end, dims,
            BLOCK_SIZE, KV_HEADS, HEAD_DIM, False, UPCAST,
        )  # fmt: skip
        values = load_tile(
            v_pool, table, kv_head, positions, end, dims,
            BLOCK_SIZE, KV_HEADS, HEAD_DIM, False, UPCAST,
        )  # fmt: skip
        acc, top, total = add_tile(query, keys, values, None, scale, acc, top, total, False)
    for tile in range(seen_by_all, end, TILE):
        positions = tile + tl.arange(0, TILE)
        keys = load_tile(
            k_pool, table, kv_head, positions, end, dims,
            BLOCK_SIZE, KV_HEADS, HEAD_DIM, True, UPCAST,
        )  # fmt: skip
        values = load_tile(
            v_pool, table, kv_head, positions, end, dims,
            BLOCK_SIZE, KV_HEADS, HEAD_DIM, True, UPCAST,
        )  # fmt: skip
        visible = positions[None, :] <= (first_position + queries)[:, None]
        acc, top, total = add_tile(query, keys, values, visible, scale, acc, top, total, True)
    tl.store(out + offsets, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)


def tile_config(head_dim: int, fp32: bool) -> dict[str, int]:
    """Rows and positions per tile, warps, stages, by shape alone (measured on an H200)."""
    if fp32:
        tile = 32 if head_dim <= 64 else 16
        return {"BLOCK_M": 32, "TILE": tile, "num_warps": 4, "num_stages": 2}
    if head_dim > 128:
        return {"BLOCK_M": 64, "TILE": 32, "num_warps": 4, "num_stages": 2}
    if head_dim <= 64:
        return {"BLOCK_M": 64, "TILE": 64, "num_warps": 4, "num_stages": 2}
    return {"BLOCK_M": 128, "TILE": 64, "num_warps": 4, "num_stages": 3}


def _config(head_dim: int, group: int, fp32: bool) -> dict[str, int]:
    """`tile_config`, with room for a query of all the `group` heads of a K/V head."""
    config = tile_config(head_dim, fp32)
    return config | {"BLOCK_M": max(config["BLOCK_M"], next_power_of_2(group))}


def plan_prefill(
    k_pool: torch.Tensor,
    block_tables: torch.Tensor,  # noqa: ARG001 - of other faces
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    num_heads: int,
    most_tokens: int,
) -> PrefillPlan:
    """See `kernels.Ops`."""
    kv_heads, head_dim = k_pool.shape[2:]
    group = num_heads // kv_heads
    queries = _config(head_dim, group, is_fp32(k_pool))["BLOCK_M"] // group
    return list_tiles(rows, query_starts, context_lens, most_tokens, queries)


def paged_attention_prefill(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    *,
    max_context_len: int,  # noqa: ARG001 - the grid follows the queries
    plan: PrefillPlan | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `kernels.reference.paged_attention_prefill`."""
    tokens, heads, head_dim = q.shape
    _, block_size, kv_heads, _ = k_pool.shape
    out = torch.empty_like(q) if out is None else out
    if rows.shape[0] == 0 or tokens == 0:
        return out
    if plan is None:
        plan = plan_prefill(k_pool, block_tables, rows, query_starts, context_lens, heads, tokens)
    prefill_kernel[(plan.capacity, kv_heads)](
        q, k_pool, v_pool, block_tables, plan.items, plan.count, out,
        scale * math.log2(math.e), block_tables.shape[1],
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, ITEM=ITEM,
        BLOCK_D=next_power_of_2(head_dim), UPCAST=INTERPRETED,
        **_config(head_dim, heads // kv_heads, is_fp32(q)),
    )  # fmt: skip
    return out
