"""Matrix products of a processor's own (AMX of Intel's Xeons from 2023 on), for compiled kernels.

A thread has eight tiles of up to 16 lines of 64 bytes. `multiply` adds to tile c, floats [m, 16],
the product of tile a, bfloat16 [m, 32], and tile b, bfloat16 [16, 16, 2]: 16 columns whose numbers
lie in pairs. A number of c is the sum of its own line and column alone, in one order, whatever m.
"""

# ruff: noqa: ARG001 - numba wants these parameters.

import ctypes
import platform
import sys
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.compiled import has

LINES = 16  # most of a tile
LINE = 64  # bytes
DEPTH = 32  # numbers of bfloat16 in a line
SIZES = 64  # bytes that `configure` reads

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # arch_prctl(2) of x86-64's Linux
_BYTE, _LONG = ir.IntType(8), ir.IntType(64)


@cache
def is_available() -> bool:
    """Whether kernels may use tiles: Linux lets a process do so once it has asked."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    if not has("amx-tile", "amx-bf16", "avx512f"):
        return False
    return not ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)


def _instruction(builder: Any, name: str, *args: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [arg.type for arg in args])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}")
    builder.call(function, args)


def _tile(number: Any) -> Any:
    """Which tile is part of an instruction."""
    return ir.Constant(_BYTE, number.literal_value)


def _at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _BYTE.as_pointer())


@intrinsic
def configure(typing_context: Any, sizes: Any) -> Any:
    """Sets the tiles' sizes: of SIZES bytes the first is 1, bytes of a line of tile i are the
    uint16 at 16 + 2 * i, its lines the byte at 48 + i, the others 0. What tiles held is lost."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _instruction(builder, "ldtilecfg", _at(builder, args[0]))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def release(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _instruction(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic(prefer_literal=True)
def zero(typing_context: Any, tile: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _instruction(builder, "tilezero", _tile(tile))
        return context.get_dummy_value()

    return types.void(tile), generate


@intrinsic(prefer_literal=True)
def load(typing_context: Any, tile: Any, address: Any, stride: Any) -> Any:
    """`stride`: bytes from a line to the next."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _instruction(builder, "tileloadd64", _tile(tile), _at(builder, args[1]), args[2])
        return context.get_dummy_value()

    return types.void(tile, types.int64, types.int64), generate


@intrinsic(prefer_literal=True)
def store(typing_context: Any, tile: Any, address: Any, stride: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _instruction(builder, "tilestored64", _tile(tile), _at(builder, args[1]), args[2])
        return context.get_dummy_value()

    return types.void(tile, types.int64, types.int64), generate


@intrinsic(prefer_literal=True)
def multiply(typing_context: Any, c: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _instruction(builder, "tdpbf16ps", _tile(c), _tile(a), _tile(b))
        return context.get_dummy_value()

    return types.void(c, a, b), generate
