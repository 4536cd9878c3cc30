"""Paged prefill attention as `kernels.paged_attention_prefill`, with the sums of
`kernels.invariant_split`."""

import math

import torch
import triton
import triton.language as tl

from kernels.decode_plan import SPLIT
from kernels.invariant_split import LEAST, attend_split, merge_split, sums_of, tile_size
from kernels.launch import INTERPRETED, is_fp32, next_power_of_2
from kernels.prefill_plan import ITEM, PrefillPlan, list_tiles


@triton.jit
def invariant_prefill_kernel(
    q, k_pool, v_pool, block_tables, items, count, out, scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr, ITEM: tl.constexpr, TILE: tl.constexpr,
    BLOCK_M: tl.constexpr, SUMS: tl.constexpr, BLOCK_D: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    entry = items + tl.program_id(0) * ITEM
    first_token, num_queries = tl.load(entry), tl.load(entry + 1)
    first_position, row = tl.load(entry + 2), tl.load(entry + 3)
    if tl.program_id(0) >= tl.load(count):
        return
    kv_head = tl.program_id(1)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    table = block_tables + row.to(tl.int64) * table_width
    # The rows of the tile are pairs of a query and a head of the group.
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
    end = first_position + num_queries
    last_seen = first_position + queries
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    top = tl.full((BLOCK_M,), LEAST, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, end, SPLIT):
        split_acc, split_top, split_total = attend_split(
            query, k_pool, v_pool, table, kv_head, start, tl.minimum(start + SPLIT, end), last_seen,
            dims, scale,
            BLOCK_SIZE, KV_HEADS, HEAD_DIM, TILE, BLOCK_M, SUMS, BLOCK_D, UPCAST,
        )  # fmt: skip
        acc, top, total = merge_split(acc, top, total, split_acc, split_top, split_total)
    tl.store(out + offsets, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)


def prefill_config(head_dim: int, group: int, fp32: bool) -> dict[str, int]:
    """Rows, warps and stages, by shape alone; a query of all `group` heads has room."""
    rows = max(32 if fp32 or head_dim > 128 else 64, next_power_of_2(group))
    return {"BLOCK_M": rows, "SUMS": sums_of(rows, fp32), "num_warps": 4, "num_stages": 2}


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
    queries = prefill_config(head_dim, group, is_fp32(k_pool))["BLOCK_M"] // group
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
    fp32 = is_fp32(q)
    invariant_prefill_kernel[(plan.capacity, kv_heads)](
        q, k_pool, v_pool, block_tables, plan.items, plan.count, out,
        scale * math.log2(math.e), block_tables.shape[1],
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, SPLIT=SPLIT,
        ITEM=ITEM, TILE=tile_size(head_dim, fp32), BLOCK_D=next_power_of_2(head_dim),
        UPCAST=INTERPRETED, **prefill_config(head_dim, heads // kv_heads, fp32),
    )  # fmt: skip
    return out
