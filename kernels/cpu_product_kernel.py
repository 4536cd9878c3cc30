"""The compiled kernel of the CPU face's products in bfloat16, on processors that have AMX.

An item is one or two columns of the weight's tiles for some rows. Each number of a result is summed
over k in one order, so that neither another row nor their count changes a bit of it.
"""

from typing import Any

import numpy as np

from kernels import amx, vector
from kernels.compiled import call, inner, kernel, take
from kernels.cpu_numbers import BFLOAT16, exp, floats
from kernels.vector import LANES

BLOCK = 2 * amx.LINES  # rows that share what is read of the weight

_FLOAT, _BFLOAT16 = 4, 2  # bytes
_TILE = amx.LINES * amx.LINE  # bytes
_AHEAD = 8  # tiles that are asked for before they are read


@inner
def _configure(rows: int, sizes: np.ndarray) -> None:
    """Tiles 0 to 3 for results, 4 and 5 for rows of x, 6 and 7 for the weight."""
    upper = min(rows, amx.LINES)
    sizes[0] = 1
    for tile in range(8):
        lines = upper if tile < 2 or tile == 4 else rows - upper
        lines = amx.LINES if tile >= 6 else lines
        sizes[48 + tile] = lines
        sizes[16 + 2 * tile] = amx.LINE if lines else 0
    amx.configure(sizes.ctypes.data)


@inner
def _multiply(
    x: int, x_line: int, weight: int, steps: int, lower: bool, wide: bool, out: int
) -> None:
    """out [rows, width] = rows of x @ a column of tiles or, if `wide`, two; rows from 17 on are
    the `lower` ones."""
    amx.zero(0)
    amx.zero(1)
    if lower:  # else they have no size
        amx.zero(2)
        amx.zero(3)
    second, below = weight + steps * _TILE, x + amx.LINES * x_line
    for i in range(steps):
        at, tile = i * amx.LINE, i * _TILE
        amx.load(4, x + at, x_line)
        amx.load(6, weight + tile, amx.LINE)
        if i + _AHEAD < steps:
            for line in range(0, _TILE, amx.LINE):
                vector.prefetch(weight + tile + _AHEAD * _TILE + line)
        amx.multiply(0, 4, 6)
        if wide:
            amx.load(7, second + tile, amx.LINE)
            amx.multiply(1, 4, 7)
        if lower:
            amx.load(5, below + at, x_line)
            amx.multiply(2, 5, 6)
            if wide:
                amx.multiply(3, 5, 7)
    width = _FLOAT * amx.LINES * (2 if wide else 1)
    amx.store(0, out, width)
    if wide:
        amx.store(1, out + width // 2, width)
    if lower:
        amx.store(2, out + amx.LINES * width, width)
        if wide:
            amx.store(3, out + amx.LINES * width + width // 2, width)


@inner
def _add(more: int, line: int, rows: int, width: int, out: int) -> None:
    """Adds bfloat16 [rows, width], `line` bytes from a row to the next, to floats at `out`."""
    for i in range(rows):
        for j in range(0, width, LANES):
            at = i * width + j
            number = vector.load_bfloat16(more + i * line, j)
            vector.store(out, at, vector.add(vector.load(out, at), number))


@inner
def _activate(gate: int, up: int, count: int) -> None:
    """silu(gate) * up of numbers that are rounded as a product's results are."""
    for i in range(0, count, LANES):
        vector.store(gate, i, vector.rounded(vector.load(gate, i)))
        vector.store(up, i, vector.rounded(vector.load(up, i)))
    gates, ups = floats(gate, count), floats(up, count)
    for i in range(count):
        gates[i] = gates[i] / (np.float32(1) + exp(-gates[i])) * ups[i]


@inner
def _narrow(numbers: int, rows: int, width: int, out: int, line: int) -> None:
    for i in range(rows):
        for j in range(0, width, LANES):
            number = vector.rounded(vector.load(numbers, i * width + j))
            vector.store_bfloat16(out + i * line, j, number)


@inner
def _item(
    arguments: Any, x: int, rows: int, first_row: int, column: int, wide: bool, room: int
) -> None:
    """At most BLOCK rows of x from `first_row` on, by the columns of tiles from `column` on."""
    k, n, weight, gated = arguments[3], arguments[4], arguments[6], arguments[10]
    bias, residual = arguments[7], arguments[8]
    steps, width = k // amx.DEPTH, amx.LINES * (2 if wide else 1)
    line, at = _BFLOAT16 * n, _BFLOAT16 * amx.LINES * column
    lower, x_line = rows > amx.LINES, _BFLOAT16 * k
    lines, tiles = x + first_row * x_line, weight + column * steps * _TILE
    _multiply(lines, x_line, tiles, steps, lower, wide, room)
    if bias:
        _add(bias + at, 0, rows, width, room)
    if residual:
        _add(residual + first_row * line + at, line, rows, width, room)
    if gated:
        up = room + _FLOAT * BLOCK * width
        _multiply(lines, x_line, tiles + n * x_line, steps, lower, wide, up)
        if bias:
            _add(bias + line + at, 0, rows, width, up)
        _activate(room, up, rows * width)
    _narrow(room, rows, width, arguments[9] + first_row * line + at, line)


@inner
def _normalize(arguments: Any, out: np.ndarray) -> None:
    """All rows of x, by the kernel that also does it alone: the same bits."""
    values = np.zeros(8, np.int64)
    values[1], values[2], values[3] = arguments[2], arguments[3], BFLOAT16
    values[4], values[5], values[6] = arguments[13], arguments[5], arguments[12]
    values[7] = out.ctypes.data
    call(arguments[11], values.ctypes.data)
    values[0] = 0  # they live until here


@kernel
def product(arguments: Any) -> None:
    """`kernels.cpu_product` makes the arguments."""
    rows, k, n, x = arguments[2], arguments[3], arguments[4], arguments[5]
    most_columns, chunk = arguments[14], arguments[15]
    normed = np.empty(rows * k if arguments[11] else 1, np.uint16)
    if arguments[11]:
        _normalize(arguments, normed)
        x = normed.ctypes.data
    room = np.empty(4 * BLOCK * amx.LINES, np.float32)
    sizes, configured = np.zeros(amx.SIZES, np.uint8), 0
    columns = n // amx.LINES
    blocks = (columns + most_columns - 1) // most_columns
    while True:
        taken = take(arguments)
        if taken >= arguments[1]:
            break
        start, column = taken // blocks * chunk, taken % blocks * most_columns
        wide = most_columns == 2 and column + 1 < columns
        for row in range(start, min(start + chunk, rows), BLOCK):
            count = min(BLOCK, rows - row)
            if count != configured:
                _configure(count, sizes)
                configured = count
            _item(arguments, x, count, row, column, wide, room.ctypes.data)
    amx.release()
    normed[0] = 0  # it lives until here
