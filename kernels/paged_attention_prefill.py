"""Paged prefill attention: ragged causal queries over history and new tokens, read from the pool.

A program takes one sequence, one K/V head and a tile of its queries; the rows of the tile are
(query, head of the group) pairs, so that the group shares every load. Tiles of positions that all
the queries see are read without a mask; only the tiles that cross the diagonal are masked.
"""

import math

import torch
import triton
import triton.language as tl

from kernels.attention_tile import add_tile, load_tile
from kernels.launch import INTERPRETED, is_fp32, next_power_of_2


@triton.jit(do_not_specialize_on_alignment=["rows", "query_starts", "context_lens"])
def prefill_kernel(
    q, k_pool, v_pool, block_tables, rows, query_starts, context_lens, out, scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    # The last queries read the most: they start first.
    query_tile = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence, kv_head = tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    first_token = tl.load(query_starts + sequence)
    query_len = tl.load(query_starts + sequence + 1) - first_token
    first_query = query_tile * QUERIES
    if first_query >= query_len:
        return
    context = tl.load(context_lens + sequence)
    history = context - query_len
    table = block_tables + tl.load(rows + sequence).to(tl.int64) * table_width

    members = tl.arange(0, BLOCK_M)
    queries = first_query + members // GROUP
    heads = kv_head * GROUP + members % GROUP
    dims = tl.arange(0, BLOCK_D)
    real_row = (members < QUERIES * GROUP) & (queries < query_len)
    real = real_row[:, None] & (dims < HEAD_DIM)[None, :]
    tokens = (first_token + queries).to(tl.int64)
    offsets = (tokens[:, None] * HEADS + heads[:, None]) * HEAD_DIM + dims[None, :]
    query = tl.load(q + offsets, mask=real, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)

    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    end = tl.minimum(history + first_query + QUERIES, context)
    seen_by_all = (history + first_query + 1) // TILE * TILE
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
        visible = positions[None, :] <= (history + queries)[:, None]
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


def paged_attention_prefill(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    max_query_len: int,
    *,
    max_context_len: int,  # noqa: ARG001 - the grid follows the queries
    plan: None = None,  # noqa: ARG001 - this face needs none
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `kernels.reference.paged_attention_prefill`; max_query_len only bounds the grid."""
    _, heads, head_dim = q.shape
    _, block_size, kv_heads, _ = k_pool.shape
    out = torch.empty_like(q) if out is None else out
    if rows.shape[0] == 0 or max_query_len == 0:
        return out
    config = tile_config(head_dim, is_fp32(q))
    group = heads // kv_heads
    config["BLOCK_M"] = max(config["BLOCK_M"], next_power_of_2(group))
    grid = (triton.cdiv(max_query_len, config["BLOCK_M"] // group), rows.shape[0], kv_heads)
    prefill_kernel[grid](
        q, k_pool, v_pool, block_tables, rows, query_starts, context_lens, out,
        scale * math.log2(math.e), block_tables.shape[1],
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        BLOCK_D=next_power_of_2(head_dim), UPCAST=INTERPRETED, **config,
    )  # fmt: skip
    return out
