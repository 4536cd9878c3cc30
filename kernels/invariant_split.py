"""Attention over a context whose sums have one order, for decodes and for prompts.

A context is cut into the splits of `kernels.decode_plan` and these into tiles of positions. One
function adds up a split, and one merges the splits of a context in order; decodes and prompts
differ in how many queries go through them together, which moves no bit: over positions add matrix
instructions alone (see `kernels.invariant_product`), a maximum has no rounding, and positions that
a query does not see add exact zeros.
"""

import triton
import triton.language as tl

# Below every score: a query that has seen nothing weighs what it sees with 1, and 0 adds nothing.
LEAST = tl.constexpr(-1e30)


@triton.jit
def load_tile(
    pool, table, kv_head, positions, end, dims,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """[positions, dims] of one K/V head through a block table row, zeros from `end` on."""
    inside = positions < end
    blocks = tl.load(table + positions // BLOCK_SIZE, mask=inside, other=0)
    # 64 bits before the multiply: slot * heads * head_dim passes 2**31 in a large pool.
    slots = blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
    offsets = slots[:, None] * (KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM + dims[None, :]
    # A value past the end is 0, not merely weighed with 0: 0 times NaN is NaN.
    tile = tl.load(pool + offsets, mask=inside[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    if UPCAST:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def attend_split(
    q, k_pool, v_pool, table, kv_head, start, end, last_seen, dims, scale,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, SUMS: tl.constexpr, BLOCK_D: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The softmax in base 2 (online: Milakov and Gimelshein 2018) of q [rows, d] over positions
    `start` to `end`, of which a row sees those up to last_seen [rows].

    Returns, fp32: the weighted sum of values [rows, d], the maximum and the sum of weights [rows].
    The latter is made SUMS times over.
    """
    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)
    sums = tl.zeros((ROWS, SUMS), tl.float32)
    top = tl.full((ROWS,), LEAST, tl.float32)
    for tile in range(start, end, TILE):
        positions = tile + tl.arange(0, TILE)
        keys = load_tile(
            k_pool, table, kv_head, positions, end, dims,
            BLOCK_SIZE, KV_HEADS, HEAD_DIM, UPCAST,
        )  # fmt: skip
        values = load_tile(
            v_pool, table, kv_head, positions, end, dims,
            BLOCK_SIZE, KV_HEADS, HEAD_DIM, UPCAST,
        )  # fmt: skip
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
        scores = tl.where(positions[None, :] <= last_seen[:, None], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1) * scale)
        shrink = tl.exp2(top - new_top)
        top = new_top
        weights = tl.exp2(tl.fma(scores, scale, -new_top[:, None])).to(values.dtype)
        acc = tl.dot(weights, values, acc * shrink[:, None], input_precision="ieee")
        # Not tl.sum, whose order would follow the tile.
        ones = tl.full((TILE, SUMS), 1.0, values.dtype)
        sums = tl.dot(weights, ones, sums * shrink[:, None], input_precision="ieee")
    return acc, top, tl.max(sums, axis=1)


@triton.jit
def merge_split(acc, top, total, split_acc, split_top, split_total):
    """A context's splits so far, and the next: [rows, d], [rows], [rows] of both."""
    new_top = tl.maximum(top, split_top)
    shrink = tl.exp2(top - new_top)
    weight = tl.exp2(split_top - new_top)
    acc = tl.fma(acc, shrink[:, None], split_acc * weight[:, None])
    return acc, new_top, tl.fma(total, shrink, split_total * weight)


def tile_size(head_dim: int, fp32: bool) -> int:
    """Positions in a tile, for decodes and prompts alike (measured on an H200)."""
    if fp32:
        return 32 if head_dim <= 64 else 16
    return 128 if head_dim <= 64 else 64 if head_dim <= 128 else 32


def sums_of(rows: int, fp32: bool) -> int:
    """How often the sum of weights is made. For instructions of 16 rows a tile wider than it is
    high lets warps divide the positions; otherwise each computes all of them."""
    return 16 if fp32 or rows >= 64 else 2 * rows
