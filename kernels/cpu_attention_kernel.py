"""The compiled kernel of the CPU face's paged attention."""

from typing import Any

import numpy as np
from numba import carray

from kernels import vector
from kernels.compiled import fused, inner, kernel, pointer, take
from kernels.cpu_numbers import exp, floats, narrow, size_of, to_float, widen
from kernels.vector import LANES

TILE = 4 * LANES  # positions of which scores and weights are made at a time
FIELDS = 4  # of an item: its first token, its tokens, their row, the first one's position

_WIDTH = 4 * LANES  # numbers of a head that are weighed at a time
_FLOAT = 4  # bytes
_LINE = 64  # bytes, of a processor's cache
_NONE = np.float32(-np.inf)


@inner
def _padded(count: int, unit: int) -> int:
    return (count + unit - 1) // unit * unit


@inner
def _ask(
    layout: tuple[int, int, int, int],
    table: np.ndarray,
    start: int,
    count: int,
    k_pool: int,
    v_pool: int,
) -> None:
    """Has keys and values of these positions on their way from memory: they lie in pieces too small
    for a processor to foresee the next."""
    kind, head_dim, block_size, slot_bytes = layout
    for i in range(start, start + count):
        block = i // block_size
        slot = np.int64(table[block]) * block_size + (i - block * block_size)
        for line in range(0, head_dim * size_of(kind), _LINE):
            vector.prefetch(k_pool + slot * slot_bytes + line)
            vector.prefetch(v_pool + slot * slot_bytes + line)


@inner
def _gather(
    layout: tuple[int, int, int, int],
    table: np.ndarray,
    start: int,
    count: int,
    k_pool: int,
    v_pool: int,
    lines: int,
    keys: int,
    values: int,
) -> None:
    """Positions from `start` on as floats: keys [head_dim, TILE], values [TILE, head_dim padded].
    Columns of keys from `count` on are garbage, and lines of values are what they were."""
    kind, head_dim, block_size, slot_bytes = layout
    key_width, value_width = _padded(head_dim, LANES), _padded(head_dim, _WIDTH)
    for first in range(0, count, LANES):
        for i in range(first, min(first + LANES, count)):
            block = (start + i) // block_size
            slot = np.int64(table[block]) * block_size + (start + i - block * block_size)
            line = lines + _FLOAT * (i - first) * key_width
            widen(k_pool + slot * slot_bytes, kind, head_dim, line)
            widen(v_pool + slot * slot_bytes, kind, head_dim, values + _FLOAT * i * value_width)
        for column in range(0, key_width, LANES):
            columns = keys + _FLOAT * (column * TILE + first)
            vector.transpose(lines + _FLOAT * column, key_width, columns, TILE)


@inner
def _score(query: int, keys: int, head_dim: int, scores: int) -> None:
    """scores [TILE] = query [head_dim] @ keys: even and odd numbers of the head apart, in turn."""
    zero = vector.spread(np.float32(0))
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
    for i in range(0, head_dim, 2):
        even, odd = vector.broadcast(query, i), vector.broadcast(query, i + 1)
        at = i * TILE
        a0 = vector.multiply_add(even, vector.load(keys, at), a0)
        a1 = vector.multiply_add(even, vector.load(keys, at + LANES), a1)
        a2 = vector.multiply_add(even, vector.load(keys, at + 2 * LANES), a2)
        a3 = vector.multiply_add(even, vector.load(keys, at + 3 * LANES), a3)
        b0 = vector.multiply_add(odd, vector.load(keys, at + TILE), b0)
        b1 = vector.multiply_add(odd, vector.load(keys, at + TILE + LANES), b1)
        b2 = vector.multiply_add(odd, vector.load(keys, at + TILE + 2 * LANES), b2)
        b3 = vector.multiply_add(odd, vector.load(keys, at + TILE + 3 * LANES), b3)
    vector.store(scores, 0, vector.add(a0, b0))
    vector.store(scores, LANES, vector.add(a1, b1))
    vector.store(scores, 2 * LANES, vector.add(a2, b2))
    vector.store(scores, 3 * LANES, vector.add(a3, b3))


@inner
def _weigh(weights: int, values: int, count: int, width: int, kept: np.float32, sums: int) -> None:
    """sums [width] = kept * sums + weights [count] @ values: even and odd lines apart, in turn."""
    zero, keep = vector.spread(np.float32(0)), vector.spread(kept)
    for column in range(0, width, _WIDTH):
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
        at = column
        for i in range(1, count, 2):
            even, odd = vector.broadcast(weights, i - 1), vector.broadcast(weights, i)
            a0 = vector.multiply_add(even, vector.load(values, at), a0)
            a1 = vector.multiply_add(even, vector.load(values, at + LANES), a1)
            a2 = vector.multiply_add(even, vector.load(values, at + 2 * LANES), a2)
            a3 = vector.multiply_add(even, vector.load(values, at + 3 * LANES), a3)
            b0 = vector.multiply_add(odd, vector.load(values, at + width), b0)
            b1 = vector.multiply_add(odd, vector.load(values, at + width + LANES), b1)
            b2 = vector.multiply_add(odd, vector.load(values, at + width + 2 * LANES), b2)
            b3 = vector.multiply_add(odd, vector.load(values, at + width + 3 * LANES), b3)
            at += 2 * width
        if count % 2:
            even = vector.broadcast(weights, count - 1)
            a0 = vector.multiply_add(even, vector.load(values, at), a0)
            a1 = vector.multiply_add(even, vector.load(values, at + LANES), a1)
            a2 = vector.multiply_add(even, vector.load(values, at + 2 * LANES), a2)
            a3 = vector.multiply_add(even, vector.load(values, at + 3 * LANES), a3)
        here = sums + _FLOAT * column
        old = vector.load(here, 0), vector.load(here, LANES)
        more = vector.load(here, 2 * LANES), vector.load(here, 3 * LANES)
        vector.store(here, 0, vector.multiply_add(keep, old[0], vector.add(a0, b0)))
        vector.store(here, LANES, vector.multiply_add(keep, old[1], vector.add(a1, b1)))
        vector.store(here, 2 * LANES, vector.multiply_add(keep, more[0], vector.add(a2, b2)))
        vector.store(here, 3 * LANES, vector.multiply_add(keep, more[1], vector.add(a3, b3)))


@fused
def _exponentials(numbers: np.ndarray, shift: np.float32) -> None:
    for i in range(TILE):
        numbers[i] = exp(numbers[i] - shift)


@inner
def _attend_tile(
    query: int,
    keys: int,
    values: int,
    scores: int,
    visible: int,
    head_dim: int,
    state: np.ndarray,
    sums: int,
) -> None:
    """One query over the first `visible` positions of a tile. state: the largest score so far and
    the sum of weights; sums: the weighted values."""
    _score(query, keys, head_dim, scores)
    numbers = floats(scores, TILE)
    for i in range(visible, TILE):
        numbers[i] = _NONE
    low = vector.larger(vector.load(scores, 0), vector.load(scores, LANES))
    high = vector.larger(vector.load(scores, 2 * LANES), vector.load(scores, 3 * LANES))
    top = vector.largest(vector.larger(low, high))
    top = top if top > state[0] else state[0]
    shift = top if top > _NONE else np.float32(0)  # -inf alone gives NaN in the end, not here
    _exponentials(numbers, shift)
    low = vector.add(vector.load(scores, 0), vector.load(scores, LANES))
    high = vector.add(vector.load(scores, 2 * LANES), vector.load(scores, 3 * LANES))
    kept = exp(state[0] - shift)
    state[0] = top
    state[1] = state[1] * kept + vector.total(vector.add(low, high))
    _weigh(scores, values, visible, _padded(head_dim, _WIDTH), kept, sums)


@inner
def _attend_item(
    item: np.ndarray, head: int, arguments: Any, table: np.ndarray, room: tuple[Any, ...]
) -> None:
    """All queries of an item before one K/V head. A tile of keys and values serves all of them."""
    kind, heads, kv_heads, head_dim = arguments[2], arguments[3], arguments[4], arguments[5]
    scale, group = to_float(np.uint32(arguments[7])), heads // kv_heads
    first, tokens, position = item[0], item[1], item[3]
    keys, values, lines, scores, queries, sums, states = room
    key_width, width = _padded(head_dim, LANES), _padded(head_dim, _WIDTH)
    head_bytes = head_dim * size_of(kind)
    layout = kind, head_dim, arguments[6], kv_heads * head_bytes
    k_pool, v_pool = arguments[10] + head * head_bytes, arguments[11] + head * head_bytes
    end = position + tokens
    _ask(layout, table, 0, min(TILE, end), k_pool, v_pool)
    for i in range(tokens * group):
        at = ((first + i // group) * heads + head * group + i % group) * head_bytes
        query = queries + _FLOAT * i * key_width
        widen(arguments[9] + at, kind, head_dim, query)
        numbers = floats(query, head_dim)
        for j in range(head_dim):
            numbers[j] *= scale
        nothing = vector.spread(np.float32(0))
        for j in range(0, width, LANES):
            vector.store(sums + _FLOAT * i * width, j, nothing)
        states[2 * i], states[2 * i + 1] = _NONE, np.float32(0)
    for start in range(0, end, TILE):
        count, behind = min(TILE, end - start), start + TILE
        _ask(layout, table, behind, min(TILE, end - behind), k_pool, v_pool)
        _gather(layout, table, start, count, k_pool, v_pool, lines, keys, values)
        for i in range(tokens * group):
            visible = min(TILE, position + i // group + 1 - start)
            if visible > 0:
                query, weighted = queries + _FLOAT * i * key_width, sums + _FLOAT * i * width
                state = states[2 * i :]
                _attend_tile(query, keys, values, scores, visible, head_dim, state, weighted)
    for i in range(tokens * group):
        at = ((first + i // group) * heads + head * group + i % group) * head_bytes
        result = floats(sums + _FLOAT * i * width, head_dim)
        for j in range(head_dim):
            result[j] /= states[2 * i + 1]
        narrow(arguments[14] + at, kind, result)


@kernel
def attend(arguments: Any) -> None:
    """`kernels.cpu_attention` makes the arguments."""
    kv_heads, head_dim, most_queries = arguments[4], arguments[5], arguments[15]
    items = carray(pointer(arguments[8]), (arguments[1] // kv_heads, FIELDS), np.int64)
    tables, table_width = arguments[12], arguments[13]
    key_width, width = _padded(head_dim, LANES), _padded(head_dim, _WIDTH)
    fixed = TILE * (key_width + width + 1) + LANES * key_width
    # Zeros in what pads a head: garbage there would change nothing, but denormals are slow.
    buffer = np.zeros(fixed + most_queries * (key_width + width) + _LINE // _FLOAT, np.float32)
    keys = _padded(buffer.ctypes.data, _LINE)
    values = keys + _FLOAT * TILE * key_width
    lines = values + _FLOAT * TILE * width
    scores = lines + _FLOAT * LANES * key_width
    queries = scores + _FLOAT * TILE
    sums = queries + _FLOAT * most_queries * key_width
    states = np.empty(2 * most_queries, np.float32)
    room = keys, values, lines, scores, queries, sums, states
    while True:
        taken = take(arguments)
        if taken >= arguments[1]:
            break
        item = items[taken // kv_heads]
        row = pointer(tables + 4 * table_width * item[2])
        _attend_item(item, taken % kv_heads, arguments, carray(row, (table_width,), np.int32), room)
    buffer[0] = 0  # it lives until here
