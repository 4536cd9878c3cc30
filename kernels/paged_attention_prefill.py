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

from kernels.attention_sizes import prefill_tile
from kernels.attention_tile import add_tile, load_blocks, load_lines
from kernels.launch import INTERPRETED, is_fp32, next_power_of_2
from kernels.pdl import follow, pdl_options
from kernels.prefill_plan import ITEM, PrefillPlan, list_tiles


@triton.jit
def prefill_kernel(
    q, k_pool, v_pool, block_tables, items, count, out, scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ITEM: tl.constexpr, TILE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, UPCAST: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if not EARLY:
        follow(PDL)
    # Read before it is known that there is so much to do, which saves a wait.
    entry = items + tl.program_id(0) * ITEM
    first_token, num_queries = tl.load(entry), tl.load(entry + 1)
    first_position, row = tl.load(entry + 2), tl.load(entry + 3)
    there = tl.program_id(0) < tl.load(count)
    if EARLY:
        follow(PDL)
    if not there:
        return
    kv_head = tl.program_id(1)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    STRIDE: tl.constexpr = KV_HEADS * HEAD_DIM
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
    lines = tl.arange(0, TILE)
    keys_of, values_of = k_pool + kv_head * HEAD_DIM, v_pool + kv_head * HEAD_DIM
    end = first_position + num_queries
    seen_by_all = (first_position + 1) // TILE * TILE
    blocks = load_blocks(table, lines, end, BLOCK_SIZE)
    for tile in range(0, end, TILE):
        positions = tile + lines
        # Read a tile ahead: its pool lines wait for nothing.
        next_blocks = load_blocks(table, positions + TILE, end, BLOCK_SIZE)
        in_block = lines if TILE % BLOCK_SIZE == 0 else positions
        keys = load_lines(
            keys_of, blocks, in_block, positions, end, dims,
            BLOCK_SIZE, STRIDE, HEAD_DIM, UPCAST,
        )  # fmt: skip
        values = load_lines(
            values_of, blocks, in_block, positions, end, dims,
            BLOCK_SIZE, STRIDE, HEAD_DIM, UPCAST,
        )  # fmt: skip
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
        if tile >= seen_by_all:
            visible = positions[None, :] <= (first_position + queries)[:, None]
            scores = tl.where(visible, scores, float("-inf"))
        acc, top, total = add_tile(scores, values, scale, acc, top, total)
        blocks = next_blocks
    tl.store(out + offsets, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)


def _config(head_dim: int, group: int, fp32: bool) -> dict[str, int]:
    """`prefill_tile`, with room for a query of all the `group` heads of a K/V head."""
    config = prefill_tile(head_dim, fp32)
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
    """See `kernels.reference.paged_attention_prefill`.

    A given `plan` is read at once: another kernel must have been launched since it was written.
    """
    tokens, heads, head_dim = q.shape
    _, block_size, kv_heads, _ = k_pool.shape
    out = torch.empty_like(q) if out is None else out
    if rows.shape[0] == 0 or tokens == 0:
        return out
    early = plan is not None
    if plan is None:
        plan = plan_prefill(k_pool, block_tables, rows, query_starts, context_lens, heads, tokens)
    prefill_kernel[(plan.capacity, kv_heads)](
        q, k_pool, v_pool, block_tables, plan.items, plan.count, out,
        scale * math.log2(math.e), block_tables.shape[1],
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, ITEM=ITEM,
        BLOCK_D=next_power_of_2(head_dim), UPCAST=INTERPRETED, EARLY=early,
        **_config(head_dim, heads // kv_heads, is_fp32(q)), **pdl_options(tokens),
    )  # fmt: skip
    return out
