"""The compiled kernel of the CPU face's paged attention in bfloat16, on processors that have AMX.

Scores are keys by queries, so that a tile of keys is read where it lies, and values become tiles of
pairs of positions. A query is a column of one product and a line of the other, and nothing in it
depends on the others: its bits are those of a query alone. Only values of its own sequence that are
not finite reach it from later positions of a tile, where they weigh 0.
"""

from typing import Any

import numpy as np
from numba import carray

from kernels import amx, cpu_kv_lines, cpu_softmax, vector
from kernels import vector_softmax as more
from kernels.compiled import inner, kernel, pointer, take, thread
from kernels.cpu_attention_kernel import FIELDS, TILE
from kernels.cpu_kv_lines import PLACES, clear, copy
from kernels.cpu_numbers import to_float
from kernels.cpu_softmax import STATE
from kernels.vector import LANES

_FLOAT, _BFLOAT16 = 4, 2  # bytes
_LINE = 64  # bytes, of a processor's cache, of a tile and of a vector
_TILE = amx.LINES * _LINE  # bytes
_LOG2_E = np.float32(1.4426950408889634)
# Of `rooms`.
_FOLLOWING, _KEYS, _VALUES, _NOTHING, _SCORES = range(5)
_PAIRS, _WEIGHTS, _QUERIES, _SUMS, _STATES = range(5, 10)


@inner
def rooms(blocks: int, kv_heads: int, size: int) -> tuple[int, ...]:
    """Where in a thread's room begin: places that follow, behind those at its begin, copied keys,
    values, zeros, scores, pairs of weights, tiles of weights, queries, sums and states; and its
    size. All in bytes, for `blocks` of queries and `kv_heads` heads of `size` bytes."""
    keys = 2 * PLACES
    values = keys + TILE * kv_heads * size
    nothing = values + TILE * kv_heads * size
    scores = nothing + size
    pairs = scores + TILE * LANES * _FLOAT
    weights = pairs + TILE * LANES * _BFLOAT16
    queries = weights + TILE * LANES * _BFLOAT16
    sums = queries + blocks * LANES * size
    states = sums + blocks * LANES * size * _FLOAT // _BFLOAT16
    end = states + blocks * STATE
    return PLACES, keys, values, nothing, scores, pairs, weights, queries, sums, states, end


@inner
def _configure(width: int, sizes: np.ndarray) -> None:
    """Tiles 0 and 1 for scores, 2 for queries, 3 and 7 for keys and values, 4 and 5 for sums, 6 for
    weights."""
    sizes[0] = 1
    for tile in range(8):
        sizes[48 + tile] = width if 4 <= tile < 7 else amx.LINES
        sizes[16 + 2 * tile] = _FLOAT * width if tile < 3 else _LINE
    amx.configure(sizes.ctypes.data)


@inner
def _take_queries(item: np.ndarray, arguments: Any, head: int, room: int) -> None:
    """The item's queries before some K/V heads, `width` of them a block [head_dim / 32, 16, width,
    2]. Columns without a query are zeros."""
    heads, size = arguments[3], arguments[5] * _BFLOAT16
    group, some, width = heads // arguments[4], arguments[17], arguments[18]
    begin = rooms(arguments[2], some, size)
    lines, queries, state = room + begin[_KEYS], room + begin[_QUERIES], room + begin[_STATES]
    for kv_head in range(head, head + some):
        source = arguments[9] + (item[0] * heads + kv_head * group) * size
        one, seen = 0, item[3] + 1
        for start in range(0, item[1] * group, width):
            cpu_softmax.begin(state)
            for i in range(width):
                cpu_softmax.set_seen(state, i, width, min(seen, item[3] + item[1]))
                if start + i < item[1] * group:
                    copy(source + one * size, lines + i * size, size)
                else:
                    clear(lines + i * size, size)
                one += 1
                if one == group:
                    one, seen, source = 0, seen + 1, source + heads * size
            _turn(lines, size, width, queries)
            state, queries = state + STATE, queries + LANES * size


@inner
def _turn(lines: int, size: int, width: int, out: int) -> None:
    """Words [width, size / 4] to [size / 4, width]."""
    if width == LANES:
        for at in range(0, size // _FLOAT, LANES):
            vector.transpose(lines + _FLOAT * at, size // _FLOAT, out + at * _LINE, LANES)
        return
    words = carray(pointer(lines), (width, size // _FLOAT), np.uint32)
    turned = carray(pointer(out), (size // _FLOAT, width), np.uint32)
    for i in range(size // _FLOAT):
        for j in range(width):
            turned[i, j] = words[j, i]


@inner
def _give_results(item: np.ndarray, arguments: Any, head: int, room: int) -> None:
    heads, size = arguments[3], arguments[5] * _BFLOAT16
    group, some, width = heads // arguments[4], arguments[17], arguments[18]
    begin = rooms(arguments[2], some, size)
    sums, state = room + begin[_SUMS], room + begin[_STATES]
    for kv_head in range(head, head + some):
        target, one = arguments[14] + (item[0] * heads + kv_head * group) * size, 0
        for start in range(0, item[1] * group, width):
            for i in range(min(width, item[1] * group - start)):
                total = cpu_softmax.total_of(state, i)
                _give(sums + i * _LINE, np.float32(1) / total, size, target + one * size)
                one += 1
                if one == group:
                    one, target = 0, target + heads * size
            state, sums = state + STATE, sums + LANES * size * _FLOAT // _BFLOAT16


@inner
def _give(sums: int, share: np.float32, size: int, out: int) -> None:
    """One query's result from its lines of tiles."""
    factor = vector.spread(share)
    for column in range(0, size // _BFLOAT16, 2 * LANES):
        tile = sums + column * _LINE
        low = more.multiply(vector.load(tile, 0), factor)
        high = more.multiply(vector.load(tile + _TILE, 0), factor)
        first, second = more.unpaired(low, high, 0), more.unpaired(low, high, 1)
        vector.store_bfloat16(out, column, vector.rounded(first))
        vector.store_bfloat16(out, column + LANES, vector.rounded(second))


@inner
def _score(
    upper: int, upper_line: int, lower: int, lower_line: int, queries: int, size: int, width: int,
    scores: int,
) -> None:  # fmt: skip
    """scores [32, width] = 16 upper keys and 16 lower ones @ queries."""
    line = _FLOAT * width
    amx.zero(0)
    amx.zero(1)
    for at in range(0, size, _LINE):
        amx.load(2, queries + at // _LINE * amx.LINES * line, line)
        amx.load(3, upper + at, upper_line)
        amx.multiply(0, 3, 2)
        amx.load(7, lower + at, lower_line)
        amx.multiply(1, 7, 2)
    amx.store(0, scores, line)
    amx.store(1, scores + amx.LINES * line, line)


@inner
def _weigh(
    scores: int, start: int, width: int, scale: np.float32, state: int, pairs: int, weights: int
) -> bool:
    """weights: tiles [TILE / 32, width, 32] of what the scores weigh. Returns whether sums so far
    are worth less."""
    if cpu_softmax.seen_by(state, 0) < start + TILE:
        cpu_softmax.hide(scores, start, width, state)
    is_less = cpu_softmax.raise_top(scores, scale, width, state)
    if width == LANES:
        cpu_softmax.weigh(scores, scale, state, pairs)
    else:
        cpu_softmax.weigh_few(scores, scale, state, pairs)
    for at in range(0, TILE // amx.DEPTH * width * _LINE, width * _LINE):
        if width == LANES:
            vector.transpose(pairs + at, LANES, weights + at, LANES)
        else:
            more.transpose_quarters(pairs + at, weights + at)
    return is_less


@inner
def _add_values(
    weights: int, width: int, values: int, tiles: int, is_first: bool, sums: int
) -> None:
    """sums, tiles of 16 columns each, = weights @ values, more than before unless `is_first`."""
    for tile in range(0, tiles, 2):
        here = sums + tile * _TILE
        if is_first:
            amx.zero(4)
            amx.zero(5)
        else:
            amx.load(4, here, _LINE)
            amx.load(5, here + _TILE, _LINE)
        for i in range(TILE // amx.DEPTH):
            value = values + (i * tiles + tile) * _TILE
            amx.load(6, weights + i * width * _LINE, _LINE)
            amx.load(3, value, _LINE)
            amx.multiply(4, 6, 3)
            amx.load(7, value + _TILE, _LINE)
            amx.multiply(5, 6, 7)
        amx.store(4, here, _LINE)
        amx.store(5, here + _TILE, _LINE)


@inner
def _attend_tile(
    count: int, start: int, arguments: Any, head: int, next_head: int, places: int, following: int,
    room: int,
) -> None:  # fmt: skip
    """All `count` queries of an item before each of its heads over positions from `start` on."""
    size, some, width = arguments[5] * _BFLOAT16, arguments[17], arguments[18]
    begin = rooms(arguments[2], some, size)
    values, tiles = room + begin[_VALUES], size // _LINE * 2
    scores, pairs, weights = room + begin[_SCORES], room + begin[_PAIRS], room + begin[_WEIGHTS]
    scale = to_float(np.uint32(arguments[7])) * _LOG2_E
    is_together, pool = arguments[6] % LANES == 0, arguments[10] + head * size
    next_k, next_v = arguments[10] + next_head * size, arguments[11] + next_head * size
    at, wide = room + begin[_KEYS], some * size
    k0, is_copied0 = cpu_kv_lines.keys(places, 0, is_together, pool, wide, at)
    k1, is_copied1 = cpu_kv_lines.keys(places, LANES, is_together, pool, wide, at)
    k2, is_copied2 = cpu_kv_lines.keys(places, 2 * LANES, is_together, pool, wide, at)
    k3, is_copied3 = cpu_kv_lines.keys(places, 3 * LANES, is_together, pool, wide, at)
    apart = arguments[4] * size
    line0, line1 = wide if is_copied0 else apart, wide if is_copied1 else apart
    line2, line3 = wide if is_copied2 else apart, wide if is_copied3 else apart
    block = 0
    for i in range(some):
        at = i * size
        pool = arguments[11] + head * size + at
        for part in range(0, TILE, LANES):
            cpu_kv_lines.ask(following, part, next_v + at, size)
            cpu_kv_lines.pair_values(places, part, pool, size, room + begin[_NOTHING], values)
            cpu_kv_lines.ask(following, part, next_k + at, size)
        for _ in range(0, count, width):
            state = room + begin[_STATES] + block * STATE
            queries = room + begin[_QUERIES] + block * LANES * size
            sums = room + begin[_SUMS] + block * LANES * size * _FLOAT // _BFLOAT16
            block += 1
            if cpu_softmax.seen_by(state, LANES - 1) <= start:
                continue
            lower = scores + TILE // 2 * width * _FLOAT
            _score(k0 + at, line0, k1 + at, line1, queries, size, width, scores)
            _score(k2 + at, line2, k3 + at, line3, queries, size, width, lower)
            is_less = _weigh(scores, start, width, scale, state, pairs, weights)
            if start and is_less:
                cpu_softmax.fade(state, width, tiles, sums)
            _add_values(weights, width, values, tiles, start == 0, sums)


@kernel
def attend_bfloat16(arguments: Any) -> None:
    """`kernels.cpu_attention` makes the arguments. While a tile is attended to, the next is on its
    way, if need be of the item that the thread takes next."""
    size, some = arguments[5] * _BFLOAT16, arguments[17]
    group, each = arguments[3] // arguments[4], arguments[4] // some
    items = carray(pointer(arguments[8]), (arguments[1] // each, FIELDS), np.int64)
    room = arguments[15] + thread() * arguments[16]
    begin = rooms(arguments[2], some, size)
    clear(room + begin[_NOTHING], size)
    _configure(arguments[18], np.zeros(amx.SIZES, np.uint8))
    places, following = room, room + begin[_FOLLOWING]
    taken = take(arguments)
    if taken < arguments[1]:
        cpu_kv_lines.find(arguments, items[taken // each], 0, places)
    while taken < arguments[1]:
        item, head = items[taken // each], taken % each * some
        _take_queries(item, arguments, head, room)
        end, next_head = item[3] + item[1], head
        for start in range(0, end, TILE):
            if start + TILE < end:
                cpu_kv_lines.find(arguments, item, start + TILE, following)
            else:
                taken = take(arguments)
                next_head = taken % each * some
                if taken < arguments[1]:
                    cpu_kv_lines.find(arguments, items[taken // each], 0, following)
                else:
                    cpu_kv_lines.find_nothing(following)
            count = item[1] * group
            _attend_tile(count, start, arguments, head, next_head, places, following, room)
            places, following = following, places
        _give_results(item, arguments, head, room)
    amx.release()
