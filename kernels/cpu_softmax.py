"""What scores weigh, for the attention kernel that has AMX: a softmax whose largest score and sum
follow the positions (Milakov and Gimelshein 2018).

Scores of a tile are floats [TILE, width] of `width` queries: a vector has a position of 16 queries
or four of FEW. Weights of every fourth position are summed up apart and then these four sums, so
that both ways give the same bits. A query's state is in four vectors, in a lane of its own or in
every fourth: the largest score so far, the sum of weights, what weights so far are worth since the
largest score is another, and how many positions it sees.
"""

import numpy as np

from kernels import vector
from kernels import vector_softmax as more
from kernels.compiled import inner
from kernels.cpu_attention_kernel import TILE
from kernels.cpu_numbers import floats
from kernels.vector import LANES

FEW = LANES // 4  # queries
STATE = 4 * 4 * LANES  # bytes

_TOP, _TOTAL, _KEPT, _SEEN = 0, LANES, 2 * LANES, 3 * LANES  # floats from a state's begin
_HALF = LANES // 2
_NONE = np.float32(-np.inf)


@inner
def begin(state: int) -> None:
    vector.store(state, _TOP, vector.spread(_NONE))
    vector.store(state, _TOTAL, vector.spread(np.float32(0)))


@inner
def set_seen(state: int, query: int, width: int, seen: int) -> None:
    lanes = floats(state, STATE)
    for lane in range(query, LANES, width):
        lanes[_SEEN + lane] = seen


@inner
def seen_by(state: int, lane: int) -> int:
    return int(floats(state, STATE)[_SEEN + lane])


@inner
def total_of(state: int, lane: int) -> np.float32:
    return floats(state, STATE)[_TOTAL + lane]


@inner
def hide(scores: int, start: int, width: int, state: int) -> None:
    """Scores of positions that a query does not see, counted from `start` on, become -inf."""
    seen, none = vector.load(state, _SEEN), vector.spread(_NONE)
    first = max(0, seen_by(state, 0) - start) * width // LANES * LANES
    if width == FEW:
        seen = more.subtract(seen, more.quarter_numbers())
    for i in range(first, TILE * width, LANES):
        here = vector.spread(np.float32(start + i // width))
        vector.store(scores, i, more.where_larger(seen, here, vector.load(scores, i), none))


@inner
def raise_top(scores: int, scale: np.float32, width: int, state: int) -> bool:
    """Whether weights so far are worth less from here on. A weight is 2^(scale * score), with a
    scale above 0, over that of the largest score."""
    zero, none = vector.spread(np.float32(0)), vector.spread(_NONE)
    factor, old = vector.spread(scale), vector.load(state, _TOP)
    a, b, c, d = old, none, none, none
    for i in range(0, TILE * width, 4 * LANES):
        a = vector.larger(vector.load(scores, i), a)
        b = vector.larger(vector.load(scores, i + LANES), b)
        c = vector.larger(vector.load(scores, i + 2 * LANES), c)
        d = vector.larger(vector.load(scores, i + 3 * LANES), d)
    top = vector.larger(vector.larger(a, b), vector.larger(c, d))
    if width == FEW:
        top = vector.larger(top, more.turned(top, _HALF))
        top = vector.larger(top, more.turned(top, FEW))
    # -inf alone gives NaN in the end, not here.
    shift = more.where_larger(top, none, more.multiply(top, factor), zero)
    # Not fused, so that it is exactly 1 where the largest score stays.
    kept = more.power_of_2(more.subtract(more.multiply(old, factor), shift))
    vector.store(state, _TOP, top)
    vector.store(state, _KEPT, kept)
    lost = more.subtract(vector.spread(np.float32(1)), kept)
    # NaN in a lane must not hide what the others lost.
    return vector.largest(more.where_larger(lost, zero, lost, zero)) > np.float32(0)


@inner
def weigh(scores: int, scale: np.float32, state: int, pairs: int) -> None:
    """Weights of 16 queries in bfloat16, as pairs of positions [TILE / 2, 16, 2]."""
    factor, shift = vector.spread(scale), _shift(scale, state)
    a = b = c = d = vector.spread(np.float32(0))
    for i in range(0, TILE * LANES, 4 * LANES):
        first = _weight(scores, i, factor, shift)
        second = _weight(scores, i + LANES, factor, shift)
        third = _weight(scores, i + 2 * LANES, factor, shift)
        fourth = _weight(scores, i + 3 * LANES, factor, shift)
        a, b = vector.add(a, first), vector.add(b, second)
        c, d = vector.add(c, third), vector.add(d, fourth)
        more.store_pairs(pairs, i // 2, first, second)
        more.store_pairs(pairs, i // 2 + LANES, third, fourth)
    _sum_up(state, vector.add(vector.add(a, c), vector.add(b, d)))


@inner
def weigh_few(scores: int, scale: np.float32, state: int, pairs: int) -> None:
    """Weights of FEW queries in bfloat16, as pairs of positions [TILE / 2, FEW, 2]."""
    factor, shift = vector.spread(scale), _shift(scale, state)
    total = vector.spread(np.float32(0))
    for i in range(0, TILE * FEW, 2 * LANES):
        a = _weight(scores, i, factor, shift)
        b = _weight(scores, i + LANES, factor, shift)
        total = vector.add(vector.add(total, a), b)
        even, odd = more.every_other_quarter(a, b, 0), more.every_other_quarter(a, b, 1)
        more.store_pairs(pairs, i // 2, even, odd)
    total = vector.add(total, more.turned(total, _HALF))
    _sum_up(state, vector.add(total, more.turned(total, FEW)))


@inner
def fade(state: int, width: int, tiles: int, sums: int) -> None:
    """Line i of every tile [16, 16] times what weights of query i are worth yet."""
    for i in range(width):
        kept = vector.broadcast(state, _KEPT + i)
        for at in range(i * LANES, tiles * LANES * LANES, LANES * LANES):
            vector.store(sums, at, more.multiply(kept, vector.load(sums, at)))


@inner
def _shift(scale: np.float32, state: int) -> vector.vector:
    zero, top = vector.spread(np.float32(0)), vector.load(state, _TOP)
    shift = more.subtract(zero, more.multiply(top, vector.spread(scale)))
    return more.where_larger(top, vector.spread(_NONE), shift, zero)


@inner
def _weight(scores: int, at: int, factor: vector.vector, shift: vector.vector) -> vector.vector:
    # Not fused, so that it is exactly 1 for the largest score, however large that is.
    scaled = more.multiply(vector.load(scores, at), factor)
    return more.rounded_away(more.power_of_2(vector.add(scaled, shift)))


@inner
def _sum_up(state: int, added: vector.vector) -> None:
    """Weights count as rounded, so that those of a query make one."""
    total = vector.multiply_add(vector.load(state, _TOTAL), vector.load(state, _KEPT), added)
    vector.store(state, _TOTAL, total)
