"""What paged decode and prefill attention share: reading a tile of positions, and adding it up."""

import triton
import triton.language as tl


@triton.jit
def load_blocks(table, positions, end, BLOCK_SIZE: tl.constexpr):
    """The block ids of positions [n] in a block table row; nothing from `end` on is loaded."""
    return tl.load(table + positions // BLOCK_SIZE, mask=positions < end, other=0)


@triton.jit
def load_lines(
    pool, blocks, in_block, positions, end, columns,
    BLOCK_SIZE: tl.constexpr, STRIDE: tl.constexpr, WIDTH: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """[n, columns] of a pool that has STRIDE elements per slot, at positions [n].

    `blocks` [n] are the positions' block ids, `in_block` [n] equals them modulo BLOCK_SIZE. Nothing
    from position `end` or column WIDTH on is loaded.
    """
    inside = (in_block % BLOCK_SIZE)[:, None] * STRIDE + columns[None, :]
    # 64 bits before the multiply: slot * heads * head_dim passes 2**31 in a large pool.
    first = blocks.to(tl.int64) * (BLOCK_SIZE * STRIDE)
    mask = (positions < end)[:, None] & (columns < WIDTH)[None, :]
    # A value past the end is 0, not merely weighed with 0: 0 times NaN is NaN.
    tile = tl.load(pool + inside + first[:, None], mask=mask, other=0.0)
    if UPCAST:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def add_tile(scores, values, scale, acc, top, total):
    """One step of the online softmax (Milakov and Gimelshein 2018) in base 2.

    scores [m, n], -inf where a position is not seen; values [n, d]; `scale` > 0 holds log2(e).
    acc [m, d], top [m] (running maximum) and total [m] (running sum) are fp32. A row's first tile
    must hold a position that it sees.
    """
    # Scaled here and not before, so that scale and subtraction are one instruction per score.
    new_top = tl.maximum(top, tl.max(scores, axis=1) * scale)
    shrink = tl.exp2(top - new_top)
    weights = tl.exp2(scores * scale - new_top[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None]
    acc += tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return acc, new_top, total
