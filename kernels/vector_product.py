"""Products in vectors: of bfloat16 for processors that have no tiles for it, and of float32.

The weight lies in columns of 16 whose lines of the cache follow k: of bfloat16 a line has a pair of
k for each, [k / 2, 16, 2], of float32 one, [k, 16]. A sum takes k's lines in their order, whatever
is summed beside it, so that no other row changes a bit of it.
"""

# ruff: noqa: ARG001 - numba wants these parameters.

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels import vector
from kernels.compiled import has, inner_of
from kernels.cpu_numbers import BFLOAT16, size_of
from kernels.cpu_product_kernel import LINE, runner
from kernels.vector import LANES, WORDS

# Sums, weights and a number of x are to fit the vectors that a processor holds: 32 of 16 floats
# with AVX-512, else 16 of 8.
COLUMNS, ROWS = (2, 8) if has("avx512f") else (1, 4)

_FLOAT = 4  # bytes
_AHEAD = 16  # lines of a column that are asked for before they are read
_WHOLE = 1 << 40  # lines of a weight, all in one sum

# (builder, address of a row of x, number of a line of the weight, its vectors, sums) -> the row's
# sums plus products
Add = Callable[[Any, Any, Any, list[Any], list[Any]], list[Any]]


@dataclass(frozen=True)
class Method:
    """How numbers of a kind are multiplied."""

    name: str  # the kernel's
    add: Add
    fill: Any  # (x, k, out): makes a row of numbers to be read of x's
    size: int  # bytes of such a number
    kind: int = BFLOAT16
    summed: int = _WHOLE  # lines of the weight in a sum, an even number: a result is a sum of sums

    @property
    def depth(self) -> int:
        """Of a line of the weight, along k."""
        return LINE // LANES // size_of.py_func(self.kind)


def run_by(method: Method) -> Any:
    """What a thread runs."""
    name, size, fill, number = method.name, method.size, method.fill, size_of.py_func(method.kind)

    @inner_of(name)
    def room_bytes(rows: int, k: int) -> int:
        return (rows + ROWS - 1) // ROWS * ROWS * (size * k + LINE)

    @inner_of(name)
    def prepare(x: int, rows: int, k: int, room: int) -> tuple[int, int]:
        line = size * k + LINE  # lines a power of two apart would share few places of a cache
        for i in range(rows):
            fill(x + i * number * k, k, room + i * line)
        for i in range(rows, (rows + ROWS - 1) // ROWS * ROWS):  # read, for nobody
            for j in range(0, size * k // _FLOAT, LANES):
                vector.store(room + i * line, j, vector.spread(np.float32(0)))
        return room, line

    @inner_of(name)
    def end() -> None:
        return

    return runner(name, room_bytes, prepare, _multiplier(method), end, method.kind)


def most_columns(rows: int, columns: int, threads: int) -> int:
    """Of an item: sums of two are more chains of additions at once, which one row needs."""
    return COLUMNS


def _multiplier(method: Method) -> Any:
    one, depth = _by_columns(method, 1), method.depth
    most = one if COLUMNS == 1 else _by_columns(method, COLUMNS)

    @inner_of(method.name)
    def multiply(
        lines: tuple[int, int], rows: int, weight: int, k: int, wide: bool, out: int, room: int
    ) -> None:
        if wide:
            most(lines[0], lines[1], rows, weight, k // depth, out)
        else:
            one(lines[0], lines[1], rows, weight, k // depth, out)

    return multiply


def _by_columns(method: Method, columns: int) -> Any:
    whole, half, one = (_block(method, rows, columns) for rows in (ROWS, ROWS // 2, 1))
    width = _FLOAT * LANES * columns

    @inner_of(method.name)
    def multiply(x: int, line: int, rows: int, weight: int, lines: int, out: int) -> None:
        """The last block may have lines behind the rows, whose results nobody reads."""
        row = 0
        while row < rows:
            at, to = x + row * line, out + row * width
            if rows - row > ROWS // 2:
                whole(at, line, weight, lines, to)
                row += ROWS
            elif rows - row > 1:
                half(at, line, weight, lines, to)
                row += ROWS // 2
            else:
                one(at, line, weight, lines, to)
                row += 1

    return multiply


def _block(method: Method, rows: int, columns: int) -> Any:
    adder, count, summed = _adder(method.add, columns), rows * columns, method.summed

    @inner_of(method.name)
    def block(x: int, line: int, weight: int, lines: int, out: int) -> None:
        for start in range(0, lines, summed):
            sums = _zeros(count)
            for i in range(start, min(start + summed, lines), 2):
                sums = adder(sums, x, line, weight, lines, i)
                sums = adder(sums, x, line, weight, lines, i + 1)
            if start == 0:
                _store(sums, out)
            else:
                _add_to(sums, out)

    return block


def _adder(add: Add, columns: int) -> Any:
    @intrinsic
    def adder(
        typing_context: Any, sums: Any, x: Any, line: Any, weight: Any, lines: Any, i: Any
    ) -> Any:
        """sums [rows, columns] plus the products of the weight's line i; `line`: bytes of x's."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            before, (x, line, weight, lines, i) = (
                cgutils.unpack_tuple(builder, args[0]),
                args[1:],
            )
            weights, out, bytes_of_line = [], [], i.type(LINE)
            for _ in range(columns):
                weights.append(vector.read(builder, weight, builder.mul(i, i.type(LANES)), WORDS))
                ahead = builder.add(i, i.type(_AHEAD))
                vector.ask(builder, builder.add(weight, builder.mul(ahead, bytes_of_line)))
                weight = builder.add(weight, builder.mul(lines, bytes_of_line))
            for row in range(0, len(before), columns):
                out += add(builder, x, i, weights, before[row : row + columns])
                x = builder.add(x, line)
            return cgutils.pack_array(builder, out)

        return sums(sums, x, line, weight, lines, i), generate

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


@intrinsic
def _add_to(typing_context: Any, sums: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for i, more in enumerate(cgutils.unpack_tuple(builder, args[0])):
            index = args[1].type(LANES * i)
            total = vector.read(builder, args[1], index, vector.FLOATS)
            vector.write(builder, args[1], index, builder.fadd(total, more))
        return context.get_dummy_value()

    return types.void(sums, types.int64), generate
