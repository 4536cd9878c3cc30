"""Paged decode attention on a Hopper card, written in Gluon, Triton's lower level.

The items are those of `kernels.paged_attention_decode`, the heads of 64 or 128 of two bytes an
element. In a program one warp asks the copy engine for tiles of keys and values, into
a ring of slots, an item ahead if there is room; a warp group multiplies them. The tiles are the
instructions' first operand: those of a warp group take 64 positions, or dims, by as few queries as
share them. All scores of a split are there before its weights are made, so that nothing is scaled
anew. A head's sums are the same beside another head, and depend on its own context length alone.
"""

import math

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma as multiply
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention_sizes import SPLIT, hopper_heads, hopper_ring, hopper_walkers, run_of
from kernels.decode_plan import ITEM, DecodePlan
from kernels.launch import next_power_of_2
from kernels.pdl import pdl_options

# Positions of a tile, and columns of a panel: a line of 128 bytes, as the copy engine swizzles it.
TILE = 64
_TILE = gl.constexpr(TILE)
_LINES = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2))
# The multiplying warp group leaves these registers to a thread of the warp that loads.
_LOADER_REGISTERS = gl.constexpr(48)
# Triton 3.6 has it under the first name.
_copy = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_MOST_QUERIES = 16  # of a K/V head


@gluon.jit
def wait_for_kernel_before(PDL: gl.constexpr):
    if PDL >= 1:
        tl.extra.cuda.gdc_wait()


@gluon.jit
def load_tiles(
    k_lines, v_lines, block_tables, items, count, tiles, filled, emptied, table_width, nowhere,
    GROUPS: gl.constexpr, PANELS: gl.constexpr, BLOCK_SIZE: gl.constexpr, SPLIT: gl.constexpr,
    ITEM: gl.constexpr, RUN: gl.constexpr, SLOTS: gl.constexpr, EARLY: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """What the loading warp does: keys, then values, of each item of this program."""
    PIECE: gl.constexpr = BLOCK_SIZE if BLOCK_SIZE < _TILE else _TILE  # lines of a copy
    PIECES: gl.constexpr = _TILE // PIECE
    if not EARLY:
        wait_for_kernel_before(PDL)
    total_items = gl.load(count)
    first_column = gl.program_id(0) % GROUPS * (PANELS * _TILE)
    turn = 0
    for item in range(gl.program_id(0) // GROUPS, total_items, gl.num_programs(0) // GROUPS):
        entry = items + item * ITEM
        split, context, row = gl.load(entry + 1), gl.load(entry + 2), gl.load(entry + 3)
        table = block_tables + row.to(gl.int64) * table_width
        for part in range(0, parts_of(split, context, SPLIT, RUN)):
            start = (split + part) * SPLIT
            end = gl.minimum(start + SPLIT, context)
            lines = ()
            for piece in gl.static_range(SPLIT // PIECE):
                position = start + piece * PIECE
                block = gl.load(table + position // BLOCK_SIZE, mask=position < end, other=0)
                line = block * BLOCK_SIZE + position % BLOCK_SIZE
                # The engine writes zeros for lines past the pool's end, and counts them as copied.
                lines += (gl.where(position < end, line, nowhere),)
            for values in gl.static_range(2):
                for tile in gl.static_range(SPLIT // _TILE):
                    tile_start = start + tile * _TILE
                    if tile_start < end:
                        if EARLY:
                            newest = tile_start + _TILE >= context
                            if newest:  # is what the kernel before writes
                                wait_for_kernel_before(PDL)
                        slot = turn % SLOTS
                        mbarrier.wait(emptied.index(slot), (turn // SLOTS + 1) & 1)
                        mbarrier.expect(filled.index(slot), PANELS * _TILE * _TILE * 2)
                        for piece in gl.static_range(PIECES):
                            for panel in gl.static_range(PANELS):
                                _copy(
                                    v_lines if values else k_lines,
                                    [lines[tile * PIECES + piece], first_column + panel * _TILE],
                                    filled.index(slot),
                                    tiles.index(slot * PANELS + panel).slice(piece * PIECE, PIECE),
                                )
                        turn += 1


@gluon.jit
def parts_of(split, context, SPLIT: gl.constexpr, RUN: gl.constexpr):
    """Splits that are taken with this one: the rest of its run if it is the first, or none."""
    left = gl.maximum(gl.cdiv(context, SPLIT) - split, 1)
    return gl.where(split % RUN == 0, gl.minimum(left, RUN), 0)


@gluon.jit
def load_item(items, item, total_items, ITEM: gl.constexpr):
    """Sequence, split and context length; zeros if it is not there."""
    entry, there = items + item * ITEM, item < total_items
    return (
        gl.load(entry, mask=there, other=0),
        gl.load(entry + 1, mask=there, other=0),
        gl.load(entry + 2, mask=there, other=0),
    )


@gluon.jit
def wait_for(results):
    """The results of products on their way."""
    waited = hopper.warpgroup_mma_wait(0, deps=results)
    return (waited,) if len(results) == 1 else waited


@gluon.jit
def clear_lines(tile, lines_left, LAYOUT: gl.constexpr):
    """Zeros from a line on: a value past the end is 0, not merely weighed with 0."""
    lines = gl.arange(0, _TILE, layout=gl.SliceLayout(1, LAYOUT))
    values = tile.load(LAYOUT)
    nothing = gl.full([_TILE, _TILE], 0.0, values.dtype, layout=LAYOUT)
    tile.store(gl.where((lines < lines_left)[:, None], values, nothing))


@gluon.jit
def attend(
    q, out, partial, partial_stats, items, count, tiles, queries, weights, filled, emptied, scale,
    HEADS: gl.constexpr, KV_HEADS: gl.constexpr, HEAD_DIM: gl.constexpr, PACKED: gl.constexpr,
    QUERIES: gl.constexpr, SPLIT: gl.constexpr, ITEM: gl.constexpr, RUN: gl.constexpr,
    SLOTS: gl.constexpr, EARLY: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """What the multiplying warp group does, item by item."""
    GROUP: gl.constexpr = HEADS // KV_HEADS
    GROUPS: gl.constexpr = KV_HEADS // PACKED
    WIDTH: gl.constexpr = HEAD_DIM // _TILE  # panels of a head
    PANELS: gl.constexpr = PACKED * WIDTH
    TILES: gl.constexpr = SPLIT // _TILE
    # Results have positions, or dims, as rows and queries as columns.
    RESULT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, QUERIES, 16])
    QUERY: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    VALUE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    lines = gl.arange(0, _TILE, layout=gl.SliceLayout(1, RESULT))
    members = gl.arange(0, QUERIES, layout=gl.SliceLayout(0, RESULT))
    query_members = gl.arange(0, QUERIES, layout=gl.SliceLayout(1, QUERY))
    query_dims = gl.arange(0, _TILE, layout=gl.SliceLayout(0, QUERY))
    unseen = gl.full([_TILE, QUERIES], float("-inf"), gl.float32, layout=RESULT)
    zeros = gl.full([_TILE, QUERIES], 0.0, gl.float32, layout=RESULT)
    first_head = gl.program_id(0) % GROUPS * (PACKED * GROUP)
    if not EARLY:
        wait_for_kernel_before(PDL)
    total_items = gl.load(count)
    item = gl.program_id(0) // GROUPS
    sequence, split, context = load_item(items, item, total_items, ITEM)
    if EARLY:
        wait_for_kernel_before(PDL)
    if PDL == 2:
        tl.extra.cuda.gdc_launch_dependents()
    turn = 0
    while item < total_items:
        walkers = gl.num_programs(0) // GROUPS
        next_item = load_item(items, item + walkers, total_items, ITEM)
        whole = context <= RUN * SPLIT
        parts = parts_of(split, context, SPLIT, RUN)
        head_lines = (sequence.to(gl.int64) * HEADS + first_head) * HEAD_DIM
        for panel in gl.static_range(PANELS):
            member = (panel // WIDTH * GROUP + query_members)[:, None] * HEAD_DIM
            place = member + (panel % WIDTH * _TILE + query_dims)[None, :]
            asked = (query_members < GROUP)[:, None] & (parts > 0)
            query = gl.load(q + head_lines + place, mask=asked, other=0.0)
            queries.index(panel).store(query)
        fence_async_shared()
        tops = (gl.full([QUERIES], float("-inf"), gl.float32, layout=gl.SliceLayout(0, RESULT)),)
        totals = (gl.full([QUERIES], 0.0, gl.float32, layout=gl.SliceLayout(0, RESULT)),) * PACKED
        tops, sums = tops * PACKED, (zeros,) * PANELS
        for part in range(0, parts):
            start = (split + part) * SPLIT
            end = gl.minimum(start + SPLIT, context)
            scores = ()  # of each tile, of each K/V head [positions, queries]
            for tile in gl.static_range(TILES):
                tile_scores = (unseen,) * PACKED
                if start + tile * _TILE < end:
                    slot = turn % SLOTS
                    mbarrier.wait(filled.index(slot), turn // SLOTS & 1)
                    products = ()
                    for head in gl.static_range(PACKED):
                        product = zeros
                        for panel in gl.static_range(head * WIDTH, head * WIDTH + WIDTH):
                            keys = tiles.index(slot * PANELS + panel)
                            query_panel = queries.index(panel).permute((1, 0))
                            product = multiply(keys, query_panel, product, is_async=True)
                        products += (product,)
                    products = wait_for(products)
                    mbarrier.arrive(emptied.index(slot), count=1)
                    turn += 1
                    seen = (start + tile * _TILE + lines < end)[:, None]
                    tile_scores = ()
                    for head in gl.static_range(PACKED):
                        tile_scores += (gl.where(seen, products[head], unseen),)
                scores += tile_scores
            part_tops, part_totals = (), ()
            for head in gl.static_range(PACKED):
                highest = scores[head]
                for tile in gl.static_range(1, TILES):
                    highest = gl.maximum(highest, scores[tile * PACKED + head])
                part_top = gl.where(end > start, gl.max(highest, axis=0) * scale, 0.0)
                part_total = zeros
                for tile in gl.static_range(TILES):
                    weight = gl.exp2(scores[tile * PACKED + head] * scale - part_top[None, :])
                    part_total += weight
                    kept = weights.index(tile * PACKED + head).permute((1, 0))
                    kept.store(weight.to(q.dtype.element_ty))
                part_tops += (part_top,)
                part_totals += (gl.sum(part_total, axis=0),)
            fence_async_shared()
            part_sums = (zeros,) * PANELS
            for tile in gl.static_range(TILES):
                tile_start = start + tile * _TILE
                if tile_start < end:
                    slot = turn % SLOTS
                    mbarrier.wait(filled.index(slot), turn // SLOTS & 1)
                    if tile_start + _TILE > end:
                        for panel in gl.static_range(PANELS):
                            clear_lines(tiles.index(slot * PANELS + panel), end - tile_start, VALUE)
                        fence_async_shared()
                    added = ()
                    for panel in gl.static_range(PANELS):
                        values = tiles.index(slot * PANELS + panel).permute((1, 0))
                        weight_panel = weights.index(tile * PACKED + panel // WIDTH).permute((1, 0))
                        added += (multiply(values, weight_panel, part_sums[panel], is_async=True),)
                    part_sums = wait_for(added)
                    mbarrier.arrive(emptied.index(slot), count=1)
                    turn += 1
            if whole:
                tops, totals, sums = merge(
                    tops, totals, sums, part_tops, part_totals, part_sums, WIDTH
                )
            else:
                real = members < GROUP
                for panel in gl.static_range(PANELS):
                    panel_heads = first_head + panel // WIDTH * GROUP + members
                    panel_dims = (panel % WIDTH * _TILE + lines)[:, None]
                    places = panel_heads.to(gl.int64) + (item + part) * HEADS
                    kept_lines = partial + places[None, :] * HEAD_DIM + panel_dims
                    gl.store(kept_lines, part_sums[panel], mask=real[None, :])
                    if panel % WIDTH == 0:
                        kept_stats = partial_stats + places * 2
                        gl.store(kept_stats, part_tops[panel // WIDTH], mask=real)
                        gl.store(kept_stats + 1, part_totals[panel // WIDTH], mask=real)
        if whole & (parts > 0):
            for panel in gl.static_range(PANELS):
                total = totals[panel // WIDTH]
                result = sums[panel] / gl.where(total == 0.0, 1.0, total)[None, :]
                heads_of_panel = first_head + panel // WIDTH * GROUP + members
                target = (sequence.to(gl.int64) * HEADS + heads_of_panel)[None, :] * HEAD_DIM
                target += (panel % WIDTH * _TILE + lines)[:, None]
                result = result.to(out.dtype.element_ty)
                gl.store(out + target, result, mask=(members < GROUP)[None, :])
        item += walkers
        sequence, split, context = next_item


@gluon.jit
def merge(tops, totals, sums, part_tops, part_totals, part_sums, WIDTH: gl.constexpr):
    """Of each K/V head, with one split more; as `kernels.merge_splits.add_part`, bit for bit."""
    new_tops, new_totals, new_sums = (), (), ()
    for head in gl.static_range(len(tops)):
        top = gl.maximum(tops[head], part_tops[head])
        old, new = gl.exp2(tops[head] - top), gl.exp2(part_tops[head] - top)
        new_tops += (top,)
        new_totals += (gl.fma(part_totals[head], new, totals[head] * old),)
        for panel in gl.static_range(head * WIDTH, head * WIDTH + WIDTH):
            scaled = sums[panel] * old[None, :]
            new_sums += (gl.fma(part_sums[panel], new[None, :], scaled),)
    return new_tops, new_totals, new_sums


# One compiled kernel for all sizes of a pool.
@gluon.jit(do_not_specialize=["nowhere"])
def hopper_decode_kernel(
    q, k_lines, v_lines, block_tables, items, count, out, partial, partial_stats,
    scale, table_width, nowhere,
    HEADS: gl.constexpr, KV_HEADS: gl.constexpr, HEAD_DIM: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, SPLIT: gl.constexpr, ITEM: gl.constexpr, RUN: gl.constexpr,
    PACKED: gl.constexpr, QUERIES: gl.constexpr, SLOTS: gl.constexpr, EARLY: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    PANELS: gl.constexpr = PACKED * HEAD_DIM // _TILE
    element: gl.constexpr = q.dtype.element_ty
    # Of K and V [positions, columns], of the queries [queries, dims], and of a split's weights
    # [queries, positions].
    tiles = gl.allocate_shared_memory(element, [SLOTS * PANELS, _TILE, _TILE], _LINES)
    queries = gl.allocate_shared_memory(element, [PANELS, QUERIES, _TILE], _LINES)
    weights = gl.allocate_shared_memory(element, [SPLIT // _TILE * PACKED, QUERIES, _TILE], _LINES)
    filled = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    emptied = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(filled.index(slot), count=1)
        mbarrier.init(emptied.index(slot), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                attend,
                (
                    q, out, partial, partial_stats, items, count, tiles, queries, weights, filled,
                    emptied, scale, HEADS, KV_HEADS, HEAD_DIM, PACKED, QUERIES, SPLIT, ITEM, RUN,
                    SLOTS, EARLY, PDL,
                ),
            ),
            (
                load_tiles,
                (
                    k_lines, v_lines, block_tables, items, count, tiles, filled, emptied,
                    table_width, nowhere, KV_HEADS // PACKED, PANELS, BLOCK_SIZE, SPLIT, ITEM,
                    RUN, SLOTS, EARLY, PDL,
                ),
            ),
        ],
        [1],
        [_LOADER_REGISTERS],
    )  # fmt: skip


def takes(q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor) -> bool:
    """Whether `hopper_decode` is the way for queries [s, h, d] over such pools."""
    _, heads, head_dim = q.shape
    blocks, block_size, kv_heads, _ = k_pool.shape
    return (
        q.is_cuda
        and torch.cuda.get_device_capability(q.device)[0] == 9
        and q.element_size() == 2
        and head_dim in (TILE, 2 * TILE)
        and heads // kv_heads <= _MOST_QUERIES
        # Rows of a block in whole units of the swizzle, and tiles in whole blocks or parts of one.
        and block_size >= 8
        and (TILE % block_size == 0 or block_size % TILE == 0)
        and blocks * block_size < 2**31
        and all(
            pool.dtype == q.dtype and pool.is_contiguous() and pool.data_ptr() % 16 == 0
            for pool in (k_pool, v_pool)
        )
    )


def _lines(pool: torch.Tensor) -> TensorDescriptor:
    """The pool as the copy engine sees it: a line per slot."""
    blocks, block_size, kv_heads, head_dim = pool.shape
    shape, piece = [blocks * block_size, kv_heads * head_dim], min(block_size, TILE)
    return TensorDescriptor(pool, shape, [shape[1], 1], [piece, TILE], _LINES.value)


def hopper_decode(
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
    """Writes the lines of `out` [s, h, d] that have no more splits than `run_of` the sequences, and
    of the others what `kernels.merge_splits` merges. `early`: another kernel was launched since
    plan, block tables and all before each row's last position in the pools were written."""
    sequences, heads, head_dim = q.shape
    blocks, block_size, kv_heads, _ = k_pool.shape
    packed = hopper_heads(sequences, kv_heads, heads // kv_heads, head_dim)
    groups, queries = kv_heads // packed, max(8, next_power_of_2(heads // kv_heads))
    walkers = min(plan.capacity, hopper_walkers(sequences, groups, packed))
    hopper_decode_kernel[(walkers * groups,)](
        q, _lines(k_pool), _lines(v_pool), block_tables, plan.items, plan.count, out, partial,
        stats, scale * math.log2(math.e), block_tables.shape[1], blocks * block_size,
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, SPLIT=SPLIT,
        ITEM=ITEM, RUN=run_of(sequences), PACKED=packed, QUERIES=queries, EARLY=early, num_warps=4,
        **hopper_ring(packed * queries), **pdl_options(sequences),
    )  # fmt: skip
