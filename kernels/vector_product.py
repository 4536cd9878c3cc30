"""Products of bfloat16 in vectors, for processors that have no tiles for them.

The weight lies in columns of 16 whose numbers are in pairs, [k / 2, 16, 2]. A sum takes k's pairs
in their order, whatever is summed beside it, so that no other row changes a bit of it.
"""

# ruff: noqa: ARG001 - numba wants these parameters.

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels import vector
from kernels.compiled import has, inner
from kernels.cpu_product_kernel import LINE, runner
from kernels.vector import LANES, WORDS

# Sums, weights and a number of x are to fit the vectors that a processor holds: 32 of 16 floats
# with AVX-512, else 16 of 8.
COLUMNS, ROWS = (2, 8) if has("avx512f") else (1, 4)

_FLOAT, _BFLOAT16 = 4, 2  # bytes
_AHEAD = 16  # pairs of a column, of a LINE each, that are asked for before they are read

# (builder, address of a line, number of a pair, weights, sums) -> the sums of a line plus products
Add = Callable[[Any, Any, Any, list[Any], list[Any]], list[Any]]


def run_by(add: Add, size: int, fill: Any) -> Any:
    """What a thread runs where `add` multiplies, by lines of numbers of `size` bytes that
    `fill(x, k, out)` makes of x's."""

    @inner
    def room_bytes(rows: int, k: int) -> int:
        return (rows + ROWS - 1) // ROWS * ROWS * (size * k + LINE)

    @inner
    def prepare(x: int, rows: int, k: int, room: int) -> tuple[int, int]:
        line = size * k + LINE  # lines a power of two apart would share few places of a cache
        for i in range(rows):
            fill(x + i * _BFLOAT16 * k, k, room + i * line)
        for i in range(rows, (rows + ROWS - 1) // ROWS * ROWS):  # read, for nobody
            for j in range(0, size * k // _FLOAT, LANES):
                vector.store(room + i * line, j, vector.spread(np.float32(0)))
        return room, line

    @inner
    def end() -> None:
        return

    return runner(room_bytes, prepare, _multiplier(add), end)


def most_columns(rows: int, columns: int, threads: int) -> int:
    """Of an item: sums of two are more chains of additions at once, which one row needs."""
    return COLUMNS


def _multiplier(add: Add) -> Any:
    one = _by_columns(add, 1)
    most = one if COLUMNS == 1 else _by_columns(add, COLUMNS)

    @inner
    def multiply(
        lines: tuple[int, int], rows: int, weight: int, k: int, wide: bool, out: int, room: int
    ) -> None:
        if wide:
            most(lines[0], lines[1], rows, weight, k // 2, out)
        else:
            one(lines[0], lines[1], rows, weight, k // 2, out)

    return multiply


def _by_columns(add: Add, columns: int) -> Any:
    whole, half, one = (_block(add, rows, columns) for rows in (ROWS, ROWS // 2, 1))
    width = _FLOAT * LANES * columns

    @inner
    def multiply(x: int, line: int, rows: int, weight: int, pairs: int, out: int) -> None:
        """The last block may have lines behind the rows, whose results nobody reads."""
        row = 0
        while row < rows:
            at, to = x + row * line, out + row * width
            if rows - row > ROWS // 2:
                whole(at, line, weight, pairs, to)
                row += ROWS
            elif rows - row > 1:
                half(at, line, weight, pairs, to)
                row += ROWS // 2
            else:
                one(at, line, weight, pairs, to)
                row += 1

    return multiply


def _block(add: Add, rows: int, columns: int) -> Any:
    adder, count = _adder(add, columns), rows * columns

    @inner
    def block(x: int, line: int, weight: int, pairs: int, out: int) -> None:
        sums = _zeros(count)
        for pair in range(0, pairs, 2):
            sums = adder(sums, x, line, weight, pairs, pair)
            sums = adder(sums, x, line, weight, pairs, pair + 1)
        _store(sums, out)

    return block


def _adder(add: Add, columns: int) -> Any:
    @intrinsic
    def adder(
        typing_context: Any, sums: Any, x: Any, line: Any, weight: Any, pairs: Any, pair: Any
    ) -> Any:
        """sums [rows, columns] plus the products of a pair of k; `line`: bytes."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            before, (x, line, weight, pairs, pair) = (
                cgutils.unpack_tuple(builder, args[0]),
                args[1:],
            )
            weights, out, bytes_of_pair = [], [], pair.type(LINE)
            for _ in range(columns):
                weights.append(
                    vector.read(builder, weight, builder.mul(pair, pair.type(LANES)), WORDS)
                )
                ahead = builder.add(pair, pair.type(_AHEAD))
                vector.ask(builder, builder.add(weight, builder.mul(ahead, bytes_of_pair)))
                weight = builder.add(weight, builder.mul(pairs, bytes_of_pair))
            for row in range(0, len(before), columns):
                out += add(builder, x, pair, weights, before[row : row + columns])
                x = builder.add(x, line)
            return cgutils.pack_array(builder, out)

        return sums(sums, x, line, weight, pairs, pair), generate

    return adder


@intrinsic(prefer_literal=True)
def _zeros(typing_context: Any, count: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return types.UniTuple(vector.vector, count.literal_value)(count), generate


@intrinsic
def _store(typing_context: Any, sums: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for i, total in enumerate(cgutils.unpack_tuple(builder, args[0])):
            vector.write(builder, args[1], args[1].type(LANES * i), total)
        return context.get_dummy_value()

    return types.void(sums, types.int64), generate
