"""Paged attention of the CPU face: gather a row's slots, then torch's fused attention.

A query at position p always reads a context padded to `padded_length(p + 1)`, as a decode and as a
part of any prompt chunk alike, with the padding masked. The fused kernel works on each (row, head)
alone, and its result for a query does not depend on how many queries share the call, within the
bounds that `_query_counts` measures. So an output is the same, bit for bit, whatever the batch and
the chunks.

Padding reads the row's own last slot again: it is finite where the row is, so its weight of exactly
0 takes it out, and no slot past the context length, nor one of another row, is ever read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

STEP = 64
# Torch's CPU kernel takes queries in blocks of 32 (or, for many, in multiples of that).
QUERY_BLOCK = 32
MANY_QUERIES = 128


def padded_length(length: int) -> int:
    """The multiple of 64, or of an eighth of the power of two below, that holds `length`."""
    step = max(STEP, 1 << max((length - 1).bit_length() - 4, 0))
    return -(-length // step) * step


@dataclass(frozen=True)
class DecodeGroup:
    """Sequences of one padded length, which share a call."""

    members: torch.Tensor | None  # [n] int64, None for all sequences in order
    slots: torch.Tensor  # [n * padded] int64
    mask: torch.Tensor  # [n, 1, 1, padded], 0 or -inf


@dataclass(frozen=True)
class PrefillTile:
    """Consecutive queries of a sequence that read the same padded length."""

    start: int  # tokens of the step's packed axis
    end: int
    padded: int
    mask: torch.Tensor  # [queries, padded], 0 or -inf


@dataclass(frozen=True)
class PrefillSequence:
    """A sequence's slots, up to its last tile's padded length, and its tiles."""

    slots: torch.Tensor  # [padded] int64
    tiles: tuple[PrefillTile, ...]


def plan_decode(
    k_pool: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    context_lens: torch.Tensor,
    total_context: int = 0,  # noqa: ARG001 - a launch bound of other faces
) -> tuple[DecodeGroup, ...]:
    """What all layers of a step share; k_pool is any layer's, for its block size and dtype."""
    padded = [padded_length(length) for length in context_lens.tolist()]
    groups = []
    for size in sorted(set(padded)):
        if size == 0:
            continue
        members = None
        group_rows, lens = rows, context_lens
        if padded.count(size) != len(padded):
            members = torch.tensor([i for i, p in enumerate(padded) if p == size])
            group_rows, lens = rows[members], context_lens[members]
        lens = lens.long().unsqueeze(1)
        slots = _slots(block_tables, group_rows, lens, size, k_pool.shape[1])
        visible = torch.arange(size) < lens
        mask = _mask(visible, k_pool.dtype).view(-1, 1, 1, size)
        groups.append(DecodeGroup(members, slots.view(-1), mask))
    return tuple(groups)


def plan_prefill(
    k_pool: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    num_heads: int = 0,  # noqa: ARG001 - of other faces
    most_tokens: int = 0,  # noqa: ARG001
) -> tuple[PrefillSequence, ...]:
    """What all layers of a step share; a sequence without queries has no part in it."""
    starts = query_starts.tolist()
    _, limit = _query_counts(k_pool.dtype, k_pool.shape[3], torch.get_num_threads())
    plan = []
    for i, context in enumerate(context_lens.tolist()):
        first = context - (starts[i + 1] - starts[i])
        if first == context:
            continue
        padded = padded_length(context)
        lens = torch.tensor([[context]])
        slots = _slots(block_tables, rows[i : i + 1], lens, padded, k_pool.shape[1])
        tiles = _tiles(starts[i], first, context, limit, k_pool.dtype)
        plan.append(PrefillSequence(slots.view(-1), tiles))
    return tuple(plan)


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
    plan: tuple[DecodeGroup, ...] | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `kernels.reference.paged_attention_decode`."""
    if plan is None:
        plan = plan_decode(k_pool, block_tables, rows, context_lens)
    if len(plan) == 1 and plan[0].members is None:
        result = _decode_group(q, k_pool, v_pool, plan[0], scale)
        return result if out is None else out.copy_(result)
    out = torch.zeros_like(q) if out is None else out.zero_()
    for group in plan:
        mine = q.index_select(0, group.members)
        out.index_copy_(0, group.members, _decode_group(mine, k_pool, v_pool, group, scale))
    return out


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
    plan: tuple[PrefillSequence, ...] | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `kernels.reference.paged_attention_prefill`."""
    if plan is None:
        plan = plan_prefill(k_pool, block_tables, rows, query_starts, context_lens)
    kv_heads, head_dim = k_pool.shape[2:]
    out = torch.empty_like(q) if out is None else out
    grouped = (q.shape[0], kv_heads, q.shape[1] // kv_heads, head_dim)
    by_head, out_by_head = (x.view(grouped).permute(1, 2, 0, 3) for x in (q, out))
    for sequence in plan:
        keys, values = (
            _gather(pool, sequence.slots).transpose(0, 1).unsqueeze(1) for pool in (k_pool, v_pool)
        )
        for tile in sequence.tiles:
            out_by_head[:, :, tile.start : tile.end] = _attend(
                by_head[:, :, tile.start : tile.end],
                keys[:, :, : tile.padded].expand(-1, grouped[2], -1, -1),
                values[:, :, : tile.padded].expand(-1, grouped[2], -1, -1),
                tile.mask,
                scale,
            )
    return out


def _decode_group(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, group: DecodeGroup, scale: float
) -> torch.Tensor:
    """q [n, hq, d]; the query heads of a K/V head stand where a sequence's queries would."""
    n, heads, head_dim = q.shape
    kv_heads = k_pool.shape[2]
    keys, values = (
        _gather(pool, group.slots).view(n, -1, kv_heads, head_dim).transpose(1, 2)
        for pool in (k_pool, v_pool)
    )
    folded = q.view(n, kv_heads, heads // kv_heads, head_dim)
    return _attend(folded, keys, values, group.mask, scale).reshape(n, heads, head_dim)


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Fused attention of q [a, b, queries, d], padded to a query count whose results agree."""
    queries = q.shape[2]
    missing = 0
    if queries % QUERY_BLOCK:
        floor, _ = _query_counts(q.dtype, q.shape[3], torch.get_num_threads())
        missing = max(floor - queries % QUERY_BLOCK, 0)
    if missing:
        q = pad(q, (0, 0, 0, missing))
        if mask.shape[-2] != 1:
            mask = pad(mask, (0, 0, 0, missing))
    out = scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)
    return out[:, :, :queries] if missing else out


@cache
def _query_counts(dtype: torch.dtype, head_dim: int, threads: int) -> tuple[int, int]:  # noqa: ARG001
    """(floor, limit) of the queries of a call whose results are those of a full block, measured.

    The last block must hold `floor` queries at least: fewer take another matrix kernel on some
    machines (in fp32 a vector product for one query). A call may hold `limit` at most: more may
    take another algorithm.
    """
    floor, limit = 1, MANY_QUERIES
    for padded in (STEP, 3 * STEP, 10 * STEP):
        mask = _mask(torch.arange(padded) < padded - 6, dtype).view(1, 1, 1, padded)
        for q, keys, values in _probes(padded, head_dim, dtype):
            whole = scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            for n in range(floor, QUERY_BLOCK):
                part = scaled_dot_product_attention(q[:, :, :n], keys, values, attn_mask=mask)
                if not torch.equal(part, whole[:, :, :n]):
                    floor = n + 1
            repeat = (1, 1, MANY_QUERIES // QUERY_BLOCK, 1)
            many = scaled_dot_product_attention(q.repeat(repeat), keys, values, attn_mask=mask)
            if not torch.equal(many, whole.repeat(repeat)):
                limit = QUERY_BLOCK
    return floor, limit


def _probes(
    padded: int, head_dim: int, dtype: torch.dtype
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(q, keys, values) of two heads in which one of the two sums, over positions or over head_dim,
    cancels in pairs: the result is all rounding, so another order of it shows, also in bf16."""
    generator = torch.Generator().manual_seed(padded)
    keys, values = torch.randn(2, 1, 2, padded, head_dim, generator=generator).to(dtype)
    q = torch.randn(1, 2, QUERY_BLOCK, head_dim, generator=generator).to(dtype)
    even, odd = slice(0, None, 2), slice(1, None, 2)
    paired_keys, opposite_values = keys.clone(), values.clone()
    paired_keys[:, :, odd] = keys[:, :, even]
    opposite_values[:, :, odd] = -values[:, :, even]
    yield q, paired_keys, opposite_values
    large_q, large_keys = 1024 * q, 1024 * keys
    large_q[..., odd] = -large_q[..., even]
    large_keys[..., odd] = large_keys[..., even]
    yield large_q, large_keys, values


def _gather(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[slots, hk, d] of a pool [blocks, bs, hk, d]."""
    return pool.view(-1, *pool.shape[2:]).index_select(0, slots)


def _slots(
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    lens: torch.Tensor,
    padded: int,
    block_size: int,
) -> torch.Tensor:
    """[n, padded] int64 slots of lens [n, 1] tokens, the last one repeated to the end."""
    positions = torch.minimum(torch.arange(padded), lens - 1)
    blocks = block_tables[rows.long()].gather(1, positions // block_size).long()
    return blocks * block_size + positions % block_size


def _tiles(
    token: int, position: int, end: int, limit: int, dtype: torch.dtype
) -> tuple[PrefillTile, ...]:
    """Cut positions [position, end), packed from `token` on, where the padded length changes and
    after `limit` positions."""
    tiles = []
    while position < end:
        padded = padded_length(position + 1)
        stop = min(end, padded, position + limit)
        visible = torch.arange(padded) <= torch.arange(position, stop).unsqueeze(1)
        tiles.append(PrefillTile(token, token + stop - position, padded, _mask(visible, dtype)))
        token, position = token + stop - position, stop
    return tuple(tiles)


def _mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)
