"""Paged attention of the CPU face, compiled: it reads keys and values through the block tables.

An item is some consecutive queries of a sequence, a decode's one or a tile of a chunk's, before one
K/V head. Each query goes over its own context in tiles of TILE positions with a running softmax
(Milakov and Gimelshein 2018), and nothing in that depends on the queries beside it: an output is
the same, bit for bit, whatever the batch and the chunks. No slot past a sequence's context length
is ever read.
"""

import threading
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from kernels import amx
from kernels.compiled import address, empty, float_bits, held, launch
from kernels.cpu_attention_amx import attend_bfloat16, rooms
from kernels.cpu_attention_kernel import FIELDS, attend
from kernels.cpu_numbers import KINDS
from kernels.cpu_softmax import FEW
from kernels.vector import LANES

QUERY_TILE = 16  # tokens
# By tiles of a processor, where what is read of keys and values takes a larger part; of steps that
# leave each thread some of them.
_LARGE_QUERY_TILE, _LARGE_STEP = 64, 256  # tokens
_LINE = 64  # bytes, of a processor's cache
# Decodes that are shared out whole, so that a block's keys and values are read in one piece; of
# fewer, threads would not end together.
_MANY = 16


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
    k_pool: torch.Tensor,
    block_tables: torch.Tensor,  # noqa: ARG001 - of other faces
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    num_heads: int = 0,  # noqa: ARG001
    most_tokens: int = 0,  # noqa: ARG001
) -> AttentionPlan:
    """Tiles with the longest contexts come first, so that the threads end together."""
    starts = query_starts.tolist()
    is_large = takes_tiles(k_pool) and starts[-1] - starts[0] >= _LARGE_STEP
    tile = _LARGE_QUERY_TILE if is_large else QUERY_TILE
    items = []
    for i, (row, context) in enumerate(zip(rows.tolist(), context_lens.tolist(), strict=True)):
        start, end = starts[i], starts[i + 1]
        for first in range(start, end, tile):
            tokens = min(tile, end - first)
            items.append((first, tokens, row, context - (end - first)))
    items.sort(key=lambda item: -item[3])
    positions = sum(item[1] * (item[3] + item[1]) for item in items)
    table = torch.tensor(items, dtype=torch.int64).view(-1, FIELDS)
    return AttentionPlan(table, tile, positions, False)


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
    out = empty(tuple(q.shape), q.dtype) if out is None else out
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
    out = empty(tuple(q.shape), q.dtype) if out is None else out
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
    if takes_tiles(q):
        return _attend_by_tiles(q, k_pool, v_pool, block_tables, scale, plan, out)
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


def takes_tiles(heads: torch.Tensor) -> bool:
    """Whether the kernel for AMX attends to such heads [..., head_dim]: it has no code for what is
    left of a tile."""
    fills = heads.shape[-1] % amx.DEPTH == 0
    return heads.dtype == torch.bfloat16 and fills and amx.is_available()


def _attend_by_tiles(
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
    some = kv_heads if plan.most_tokens == 1 and plan.items.shape[0] >= _MANY else 1
    width, blocks, size = _blocks(plan.most_tokens * heads // kv_heads, some, head_dim)
    launch(
        attend_bfloat16,
        plan.items.shape[0] * (kv_heads // some),
        plan.positions * heads * head_dim,
        blocks,
        heads,
        kv_heads,
        head_dim,
        block_size,
        float_bits(scale),
        address(plan.items, torch.int64),
        address(q, torch.bfloat16),
        address(k_pool, torch.bfloat16),
        address(v_pool, torch.bfloat16),
        address(block_tables, torch.int32),
        block_tables.shape[1],
        address(out, torch.bfloat16),
        _room(size * torch.get_num_threads()),
        size,
        some,
        width,
    )
    return out


@cache
def _blocks(queries: int, kv_heads: int, head_dim: int) -> tuple[int, int, int]:
    """(queries of a block, blocks of an item, bytes of a thread's room)."""
    width = FEW if queries <= FEW else LANES
    blocks = -(-queries // width) * kv_heads
    size = rooms.py_func(blocks, kv_heads, 2 * head_dim)[-1]
    return width, blocks, -(-size // _LINE) * _LINE


_rooms = threading.local()


def _room(size: int) -> int:
    """The address of bytes that launches of this thread share: to allocate them each time would
    cost as much as a short context does, since the system hands out and clears every page."""
    room: torch.Tensor | None = getattr(_rooms, "room", None)
    if room is None or room.numel() < size + _LINE:
        room = _rooms.room = torch.empty(size + _LINE, dtype=torch.uint8)
    return -(-held(room).data_ptr() // _LINE) * _LINE
