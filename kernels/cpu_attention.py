"""Paged attention of the CPU face, compiled: it reads keys and values through the block tables.

An item is some consecutive queries of a sequence, a decode's one or a tile of a chunk's, before one
K/V head. Each query goes over its own context in tiles of TILE positions with a running softmax
(Milakov and Gimelshein 2018), and nothing in that depends on the queries beside it: an output is
the same, bit for bit, whatever the batch and the chunks. No slot past a sequence's context length
is ever read.
"""

from dataclasses import dataclass

import numpy as np
import torch

from kernels.compiled import address, float_bits, launch
from kernels.cpu_attention_kernel import FIELDS, attend
from kernels.cpu_numbers import KINDS

QUERY_TILE = 16  # tokens


@dataclass(frozen=True)
class AttentionPlan:
    """What all layers of a step share."""

    items: torch.Tensor  # [n, FIELDS] int64
    most_tokens: int  # of an item
    positions: int  # read, over all items and their tokens
    is_whole: bool  # whether every query of a decode step has an item


def plan_decode(
    k_pool: torch.Tensor,  # noqa: ARG001 - of other faces
    block_tables: torch.Tensor,  # noqa: ARG001
    rows: torch.Tensor,
    context_lens: torch.Tensor,
    total_context: int = 0,  # noqa: ARG001
) -> AttentionPlan:
    """A sequence without context has no item."""
    contexts = context_lens.numpy().astype(np.int64)
    tokens = np.flatnonzero(contexts > 0)
    items = np.empty((len(tokens), FIELDS), np.int64)
    items[:, 0], items[:, 1] = tokens, 1
    items[:, 2], items[:, 3] = rows.numpy()[tokens], contexts[tokens] - 1
    whole = len(tokens) == len(contexts)
    return AttentionPlan(torch.from_numpy(items), 1, int(contexts.sum()), whole)


def plan_prefill(
    k_pool: torch.Tensor,  # noqa: ARG001 - of other faces
    block_tables: torch.Tensor,  # noqa: ARG001
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    num_heads: int = 0,  # noqa: ARG001
    most_tokens: int = 0,  # noqa: ARG001
) -> AttentionPlan:
    """Tiles with the longest contexts come first, so that the threads end together."""
    starts = query_starts.tolist()
    items = []
    for i, (row, context) in enumerate(zip(rows.tolist(), context_lens.tolist(), strict=True)):
        start, end = starts[i], starts[i + 1]
        for first in range(start, end, QUERY_TILE):
            tokens = min(QUERY_TILE, end - first)
            items.append((first, tokens, row, context - (end - first)))
    items.sort(key=lambda item: -item[3])
    positions = sum(item[1] * (item[3] + item[1]) for item in items)
    table = torch.tensor(items, dtype=torch.int64).view(-1, FIELDS)
    return AttentionPlan(table, QUERY_TILE, positions, False)


def paged_attention_decode(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    *,
    max_context_len: int,  # noqa: ARG001 - a launch bound of other faces
    plan: AttentionPlan | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `kernels.reference.paged_attention_decode`."""
    if plan is None:
        plan = plan_decode(k_pool, block_tables, rows, context_lens)
    out = torch.empty_like(q) if out is None else out
    if not plan.is_whole:
        out.zero_()
    return _attend(q, k_pool, v_pool, block_tables, scale, plan, out)


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
    max_context_len: int,  # noqa: ARG001 - a launch bound of other faces
    plan: AttentionPlan | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `kernels.reference.paged_attention_prefill`."""
    if plan is None:
        plan = plan_prefill(k_pool, block_tables, rows, query_starts, context_lens)
    out = torch.empty_like(q) if out is None else out
    return _attend(q, k_pool, v_pool, block_tables, scale, plan, out)


def _attend(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    plan: AttentionPlan,
    out: torch.Tensor,
) -> torch.Tensor:
    heads, head_dim = q.shape[1:]
    block_size, kv_heads = k_pool.shape[1:3]
    items, dtype = plan.items.shape[0] * kv_heads, q.dtype
    launch(
        attend,
        items,
        plan.positions * heads * head_dim,
        KINDS[dtype],
        heads,
        kv_heads,
        head_dim,
        block_size,
        float_bits(scale),
        address(plan.items, torch.int64),
        address(q, dtype),
        address(k_pool, dtype),
        address(v_pool, dtype),
        address(block_tables, torch.int32),
        block_tables.shape[1],
        address(out, dtype),
        plan.most_tokens * heads // kv_heads,
    )
    return out
