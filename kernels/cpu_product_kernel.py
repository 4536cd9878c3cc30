"""The compiled kernel of the CPU face's products, whatever multiplies.

x, weight, bias, residual and results are of one kind of numbers, bfloat16 or float32; sums are
floats.

An item is one or two columns of the weight's tiles for a chunk of rows. Each number of a result is
summed over k in one order, so that neither another row nor their count changes a bit of it.

An instruction set is four functions. `room_bytes(rows, k)` is what a thread needs for a chunk of so
many rows; its first LINE is zeros at the start. `prepare(x, rows, k, room)` gives where the
chunk's lines then lie and the bytes from one to the next. `multiply(lines, rows, weight, k, wide,
out, room)`, `lines` as those, sets floats [rows, width] to at most BLOCK rows times a column of
tiles or, if `wide`, two. `end()` is a thread's last. All are given addresses: to count references
to an array would take a tenth of the time.
"""

from typing import Any

import numpy as np

from kernels import vector
from kernels.compiled import call, inner, inner_of, take
from kernels.cpu_numbers import BFLOAT16, exp, floats, size_of
from kernels.vector import LANES

BLOCK = 32  # rows that share what is read of the weight
LINE = 64  # bytes, of a processor's cache: what crosses two takes longer

_FLOAT = 4  # bytes


def _adder_of(name: str, kind: int) -> Any:
    load = vector.load_bfloat16 if kind == BFLOAT16 else vector.load

    @inner_of(name)
    def add(more: int, line: int, rows: int, width: int, out: int) -> None:
        """Adds [rows, width], `line` bytes from a row to the next, to floats at `out`."""
        for i in range(rows):
            for j in range(0, width, LANES):
                at, number = i * width + j, load(more + i * line, j)
                vector.store(out, at, vector.add(vector.load(out, at), number))

    return add


@inner
def _round(numbers: int, count: int) -> None:
    for i in range(0, count, LANES):
        vector.store(numbers, i, vector.rounded(vector.load(numbers, i)))


@inner
def _activate(gate: int, up: int, count: int) -> None:
    """silu(gate) * up."""
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
def _keep(numbers: int, rows: int, width: int, out: int, line: int) -> None:
    for i in range(rows):
        for j in range(0, width, LANES):
            vector.store(out + i * line, j, vector.load(numbers, i * width + j))


@inner
def _normalize(arguments: Any, kind: int, out: np.ndarray) -> None:
    """All rows of x, by the kernel that also does it alone: the same bits."""
    values = np.zeros(8, np.int64)
    values[1], values[2], values[3] = arguments[2], arguments[3], kind
    values[4], values[5], values[6] = arguments[13], arguments[5], arguments[12]
    values[7] = out.ctypes.data
    call(arguments[11], values.ctypes.data)
    values[0] = 0  # they live until here


def _item_of(name: str, multiply: Any, kind: int) -> Any:
    add, size, rounds = _adder_of(name, kind), size_of.py_func(kind), kind == BFLOAT16

    @inner_of(name)
    def item(
        arguments: Any,
        lines: tuple[int, int],
        rows: int,
        first_row: int,
        column: int,
        wide: bool,
        out: int,
        room: int,
    ) -> None:
        """At most BLOCK rows from `first_row` on, by the columns of tiles from `column` on."""
        k, n, weight, gated = arguments[3], arguments[4], arguments[6], arguments[10]
        bias, residual = arguments[7], arguments[8]
        width = LANES * (2 if wide else 1)
        line, at = size * n, size * LANES * column
        tiles = weight + at * k
        multiply(lines, rows, tiles, k, wide, out, room)
        if bias:
            add(bias + at, 0, rows, width, out)
        if residual:
            add(residual + first_row * line + at, line, rows, width, out)
        if gated:
            up = out + _FLOAT * BLOCK * width
            multiply(lines, rows, tiles + line * k, k, wide, up, room)
            if bias:
                add(bias + line + at, 0, rows, width, up)
            if rounds:  # as results are
                _round(out, rows * width)
                _round(up, rows * width)
            _activate(out, up, rows * width)
        place = first_row * line + at
        if rounds and arguments[16]:
            _narrow(out, rows, width, arguments[9] + place, line)
        else:
            more = _FLOAT // size  # times as far
            _keep(out, rows, width, arguments[9] + more * place, more * line)

    return item


def runner(
    name: str, room_bytes: Any, prepare: Any, multiply: Any, end: Any, kind: int = BFLOAT16
) -> Any:
    """What a thread of the kernel `name` runs, of the functions of an instruction set for numbers
    of a kind."""
    item, size = _item_of(name, multiply, kind), size_of.py_func(kind)

    @inner_of(name)
    def run(arguments: Any) -> None:
        """`kernels.cpu_product` makes the arguments."""
        rows, k, n, x = arguments[2], arguments[3], arguments[4], arguments[5]
        most_columns, chunk = arguments[14], min(arguments[15], rows)
        normed = np.empty(size * rows * k if arguments[11] else 1, np.uint8)
        if arguments[11]:
            _normalize(arguments, kind, normed)
            x = np.int64(normed.ctypes.data)
        out_bytes = _FLOAT * 4 * BLOCK * LANES
        space = np.empty(LINE + out_bytes + room_bytes(chunk, k), np.uint8)
        out = (np.int64(space.ctypes.data) + LINE - 1) // LINE * LINE
        room, prepared, lines = out + out_bytes, -1, (x, 0)
        vector.store(room, 0, vector.spread(np.float32(0)))
        columns = n // LANES
        blocks = (columns + most_columns - 1) // most_columns
        while True:
            taken = take(arguments)
            if taken >= arguments[1]:
                break
            start, column = taken // blocks * chunk, taken % blocks * most_columns
            count = min(chunk, rows - start)
            if start != prepared:
                lines, prepared = prepare(x + start * size * k, count, k, room), start
            wide = most_columns == 2 and column + 1 < columns
            for row in range(0, count, BLOCK):
                here = lines[0] + row * lines[1], lines[1]
                item(arguments, here, min(BLOCK, count - row), start + row, column, wide, out, room)
        end()
        normed[0] = space[0] = 0  # they live until here

    return run
