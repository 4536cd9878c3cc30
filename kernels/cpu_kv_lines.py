"""Keys and values as the attention kernel that has AMX reads them: through a block table, in tiles
of TILE positions. A line is what a position has in a pool."""

from typing import Any

import numpy as np
from numba import carray

from kernels import amx, vector
from kernels import vector_softmax as more
from kernels.compiled import inner, pointer
from kernels.cpu_attention_kernel import TILE
from kernels.vector import LANES

PLACES = 8 * TILE  # bytes

_FLOAT, _BFLOAT16, _INT32 = 4, 2, 4  # bytes
_LINE = 64  # bytes, of a processor's cache, of a tile and of a vector
_TILE = amx.LINES * _LINE  # bytes


@inner
def copy(source: int, target: int, size: int) -> None:
    for i in range(0, size // _FLOAT, LANES):
        vector.store(target, i, vector.load(source, i))


@inner
def clear(target: int, size: int) -> None:
    for i in range(0, size // _FLOAT, LANES):
        vector.store(target, i, vector.spread(np.float32(0)))


@inner
def find(arguments: Any, item: np.ndarray, start: int, out: int) -> None:
    """Places [TILE] of an item's positions from `start` on: where their lines begin, in bytes from
    the pool's begin, and -1 past the last."""
    block_size, line_bytes = arguments[6], arguments[4] * arguments[5] * _BFLOAT16
    width, count = arguments[13], min(TILE, item[3] + item[1] - start)
    row = pointer(arguments[12] + _INT32 * width * item[2])
    table, places = carray(row, (width,), np.int32), _places(out)
    block = start // block_size
    inside, i = start - block * block_size, 0
    while i < count:
        end = min(count, i + block_size - inside)
        place = (np.int64(table[block]) * block_size + inside) * line_bytes
        while i < end:
            places[i] = place
            place += line_bytes
            i += 1
        block, inside = block + 1, 0
    while i < TILE:
        places[i] = -1
        i += 1


@inner
def find_nothing(out: int) -> None:
    places = _places(out)
    for i in range(TILE):
        places[i] = -1


@inner
def ask(places: int, first: int, pool: int, size: int) -> None:
    """Has `size` bytes of 16 positions' lines on their way from memory."""
    lines = _places(places)
    for i in range(first, first + LANES):
        if lines[i] >= 0:
            for at in range(0, size, _LINE):
                more.prefetch_to_l2(pool + lines[i] + at)


@inner
def keys(
    places: int, first: int, is_together: bool, pool: int, size: int, room: int
) -> tuple[int, bool]:
    """Where 16 keys lie, and whether they had to be copied there, with zeros past the last."""
    lines = _places(places)
    if is_together and lines[first + LANES - 1] >= 0:
        return pool + lines[first], False
    here = room + first * size
    for i in range(LANES):
        if lines[first + i] >= 0:
            copy(pool + lines[first + i], here + i * size, size)
        else:
            clear(here + i * size, size)
    return here, True


@inner
def pair_values(places: int, first: int, pool: int, size: int, nothing: int, out: int) -> None:
    """16 positions' values as half tiles, with zeros past the last; all of a head's are
    [TILE / 32, head_dim / 16, 16 pairs of positions, 16, 2], columns in the order of
    `pair_lines`."""
    lines = _places(places)
    for i in range(first, first + LANES, 2):
        even = pool + lines[i] if lines[i] >= 0 else nothing
        odd = pool + lines[i + 1] if lines[i + 1] >= 0 else nothing
        line = out + i // amx.DEPTH * (TILE // 2 * size) + i % amx.DEPTH // 2 * _LINE
        for at in range(0, size, _LINE):
            tile = line + at // _LINE * 2 * _TILE
            more.pair_lines(even + at, odd + at, tile, tile + _TILE)


@inner
def _places(address: int) -> np.ndarray:
    return carray(pointer(address), (TILE,), np.int64)
