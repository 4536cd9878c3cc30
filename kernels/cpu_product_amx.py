"""Products of the CPU face by AMX, see `kernels.cpu_product_kernel`."""

# ruff: noqa: ARG001 - all instruction sets have the same parameters.

from typing import Any

import numpy as np
from numba import carray

from kernels import amx, vector
from kernels.compiled import inner, kernel, pointer
from kernels.cpu_product_kernel import BLOCK, runner

_FLOAT, _BFLOAT16 = 4, 2  # bytes
_TILE = amx.LINES * amx.LINE  # bytes
_AHEAD = 8  # tiles that are asked for before they are read


# Items of few rows that each thread is to have, so that all end together.
_SHARE = 4


def most_columns(rows: int, columns: int, threads: int) -> int:
    """Of an item. Two share what is read of x, and their sums are twice as many chains; of few
    rows they are only taken together where that leaves every thread its share."""
    return 2 if rows > BLOCK or columns >= 2 * _SHARE * threads else 1


@inner
def _room_bytes(rows: int, k: int) -> int:
    return amx.SIZES


@inner
def _lines(x: int, rows: int, k: int, room: int) -> tuple[int, int]:
    return x, _BFLOAT16 * k


@inner
def _configure(rows: int, room: int) -> None:
    """Tiles 0 to 3 for results, 4 and 5 for rows of x, 6 and 7 for the weight."""
    sizes = carray(pointer(room), (amx.SIZES,), np.uint8)
    upper = min(rows, amx.LINES)
    if sizes[48] == upper and sizes[50] == rows - upper:
        return
    sizes[0] = 1
    for tile in range(8):
        lines = upper if tile < 2 or tile == 4 else rows - upper
        lines = amx.LINES if tile >= 6 else lines
        sizes[48 + tile] = lines
        sizes[16 + 2 * tile] = amx.LINE if lines else 0
    amx.configure(room)


@inner
def _multiply(
    lines: tuple[int, int],
    rows: int,
    weight: int,
    k: int,
    wide: bool,
    out: int,
    room: int,
) -> None:
    """Rows from 17 on are the `lower` ones."""
    x, line = lines
    _configure(rows, room)
    steps, lower = k // amx.DEPTH, rows > amx.LINES
    amx.zero(0)
    amx.zero(1)
    if lower:  # else they have no size
        amx.zero(2)
        amx.zero(3)
    second, below = weight + steps * _TILE, x + amx.LINES * line
    for i in range(steps):
        at, tile = i * amx.LINE, i * _TILE
        amx.load(4, x + at, line)
        amx.load(6, weight + tile, amx.LINE)
        if i + _AHEAD < steps:
            for part in range(0, _TILE, amx.LINE):
                vector.prefetch(weight + tile + _AHEAD * _TILE + part)
        amx.multiply(0, 4, 6)
        if wide:
            amx.load(7, second + tile, amx.LINE)
            amx.multiply(1, 4, 7)
        if lower:
            amx.load(5, below + at, line)
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
def _end() -> None:
    amx.release()


_run = runner(__name__, _room_bytes, _lines, _multiply, _end)


@kernel
def product(arguments: Any) -> None:
    _run(arguments)
