"""What paged decode and prefill attention share: reading a tile of positions, and adding it up."""

import triton
import triton.language as tl


@triton.jit
def load_tile(
    pool, table, kv_head, positions, end, dims,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BOUNDED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """[positions, dims] of one K/V head through a block table row; nothing from `end` on is loaded.

    BOUNDED False promises that all positions lie before `end`.
    """
    if BOUNDED:
        inside = positions < end
        blocks = tl.load(table + positions // BLOCK_SIZE, mask=inside, other=0)
        mask = inside[:, None] & (dims < HEAD_DIM)[None, :]
    else:
        blocks = tl.load(table + positions // BLOCK_SIZE)
        mask = (dims < HEAD_DIM)[None, :]
    # 64 bits before the multiply: slot * heads * head_dim passes 2**31 in a large pool.
    slots = blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
    offsets = slots[:, None] * (KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM + dims[None, :]
    # A value past the end is 0, not merely weighed with 0: 0 times NaN is NaN.
    tile = tl.load(pool + offsets, mask=mask, other=0.0)
    if UPCAST:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def add_tile(q, keys, values, visible, scale, acc, top, total, MASKED: tl.constexpr):
    """One step of the online softmax (Milakov and Gimelshein 2018) in base 2.

    q [m, d]; keys, values [n, d]; visible broadcasts to [m, n]; `scale` > 0 holds log2(e).
    acc [m, d], top [m] (running maximum) and total [m] (running sum) are fp32. A row's first tile
    must hold a position that it sees.
    """
    scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    # Scaled here and not before, so that scale and subtraction are one instruction per score.
    new_top = tl.maximum(top, tl.max(scores, axis=1) * scale)
    shrink = tl.exp2(top - new_top)
    weights = tl.exp2(scores * scale - new_top[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None]
    acc += tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return acc, new_top, total
