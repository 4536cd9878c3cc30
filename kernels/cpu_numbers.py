"""Numbers of the CPU face's compiled kernels: read as floats from any dtype, rounded once to it."""

# ruff: noqa: ARG001 - numba wants these parameters.

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from kernels import vector
from kernels.compiled import fused, inner, pointer
from kernels.vector import LANES

FLOAT32, BFLOAT16, FLOAT16 = range(3)
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}


@intrinsic
def to_bits(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def to_float(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


@inner
def size_of(kind: int) -> int:
    """Bytes of a number."""
    return 4 if kind == FLOAT32 else 2


@inner
def floats(address: int, count: int) -> np.ndarray:
    return carray(pointer(address), (count,), np.float32)


@inner
def widen(address: int, kind: int, count: int, out: int) -> None:
    """`count` numbers to floats at the address `out`."""
    whole = count // LANES * LANES if kind != FLOAT16 else 0
    for i in range(0, whole, LANES):
        if kind == BFLOAT16:
            vector.store(out, i, vector.load_bfloat16(address, i))
        else:
            vector.store(out, i, vector.load(address, i))
    if whole < count:
        rest = count - whole
        _widen_rest(pointer(address + whole * size_of(kind)), kind, floats(out + 4 * whole, rest))


@inner
def _widen_rest(numbers: Any, kind: int, out: np.ndarray) -> None:
    if kind == FLOAT32:
        wide = carray(numbers, out.shape, np.float32)
        for i in range(out.size):
            out[i] = wide[i]
        return
    halves = carray(numbers, out.shape, np.uint16)
    for i in range(out.size):
        word = np.uint32(halves[i])
        out[i] = to_float(np.uint32(word << np.uint32(16))) if kind == BFLOAT16 else _half(word)


@inner
def narrow(address: int, kind: int, numbers: np.ndarray) -> None:
    """Floats to their nearest numbers of the dtype, the even ones of two; NaN stays NaN."""
    if kind == FLOAT32:
        wide = carray(pointer(address), numbers.shape, np.float32)
        for i in range(numbers.size):
            wide[i] = numbers[i]
    elif kind == BFLOAT16:
        out = carray(pointer(address), numbers.shape, np.uint16)
        for i in range(numbers.size):
            out[i] = _to_bfloat16(to_bits(numbers[i]))
    else:
        out = carray(pointer(address), numbers.shape, np.uint16)
        for i in range(numbers.size):
            out[i] = _to_half(to_bits(numbers[i]))


@inner
def _to_bfloat16(bits: np.uint32) -> np.uint16:
    upper = bits >> np.uint32(16)
    rounded = (bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint16(upper | np.uint32(0x40) if is_nan else rounded)


@inner
def _half(word: np.uint32) -> np.float32:
    """The float of a float16's 16 bits: exponents differ by 112."""
    sign = np.uint32(word & np.uint32(0x8000)) << np.uint32(16)
    size = np.uint32(word & np.uint32(0x7FFF)) << np.uint32(13)
    bits = to_bits(to_float(np.uint32(size)) * np.float32(2.0**112))
    if size >= np.uint32(0x7C00 << 13):  # infinite or NaN
        bits = size | np.uint32(0x7F800000)
    return to_float(np.uint32(bits | sign))


@inner
def _to_half(bits: np.uint32) -> np.uint16:
    sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
    size = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if size > np.uint32(0x7F800000):
        half = np.uint32(0x7E00)  # NaN
    elif size >= np.uint32(0x477FF000):  # from 65520 on
        half = np.uint32(0x7C00)
    elif size < np.uint32(0x38800000):  # below 2^-14; 0.5 has the smallest half as its last place
        half = to_bits(to_float(size) + np.float32(0.5)) - np.uint32(0x3F000000)
    else:
        even = (size >> np.uint32(13)) & np.uint32(1)
        half = (size + np.uint32(0xFFF) + even - np.uint32(112 << 23)) >> np.uint32(13)
    return np.uint16(half | sign)


# e^x = 2^n e^r, where n is the nearest whole number to x / ln 2.
_LEAST, _MOST = np.float32(-87.0), np.float32(88.3)  # beyond them 0 and infinity
_LOG2_E, _LN_2 = np.float32(1.4426950408889634), np.float32(0.693359375)
_LN_2_REST = np.float32(-2.12194440e-4)  # what _LN_2, whose products with n are exact, lacks
_WHOLE = np.float32(3 << 22)  # added to a small number it leaves no place for a fraction


@fused
def exp(x: np.float32) -> np.float32:
    """e^x within two last places; a Taylor polynomial on |r| <= ln 2 / 2."""
    bounded = _LEAST if x < _LEAST else x
    bounded = _MOST if bounded > _MOST else bounded
    shifted = bounded * _LOG2_E + _WHOLE
    n = shifted - _WHOLE
    r = (bounded - n * _LN_2) - n * _LN_2_REST
    p = np.float32(1 / 5040)
    p = p * r + np.float32(1 / 720)
    p = p * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + np.float32(1 / 2)
    p = p * r + np.float32(1)
    p = p * r + np.float32(1)
    power = to_float(np.uint32((to_bits(shifted) << np.uint32(23)) + np.uint32(0x3F800000)))
    p = np.float32(np.inf) if x > _MOST else p * power
    return np.float32(0) if x < _LEAST else p
