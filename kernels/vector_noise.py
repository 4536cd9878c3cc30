"""Limits of the noise of `kernels.noise` in vectors of 16 tokens, without a logarithm.

With f = 2^23 (1 - uniform), which is a whole number less a half and so a float,

    noise = -log(-log(uniform)) <= -log(1 - uniform) = log(2) (23 - log2(f)),

as -log(u) >= 1 - u. The bits of a float, taken for a whole number, are 2^23 (127 + e + m) where it
is 2^e (1 + m), and log2(1 + m) >= m for 0 <= m < 1. So

    noise <= log(2) (150 - bits / 2^23),

which is too large by 0.06 at most where the noise is large, and by 0.33 at its median.
"""

# ruff: noqa: ARG001 - numba wants these parameters.

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels import noise, vector
from kernels.vector import FLOATS, LANES, WORDS, same_words

# For what is rounded here and where the noise itself is computed.
_SLACK = 1e-3
_SCALE = -math.log(2) * 2.0**-23
_BASE = 150 * math.log(2) + _SLACK


@intrinsic
def noise_limits(typing_context: Any, hashes: Any, index: Any, key0: Any, key1: Any) -> Any:
    """16 floats above the noise of the tokens whose hashes lie at an index of the address `hashes`,
    for a row's keys."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = vector.read(builder, args[0], args[1], WORDS)
        key0, key1 = (vector.spread_word(builder, key) for key in args[2:])
        bits = _mix(builder, builder.xor(builder.add(words, key0), key1))
        rest = builder.sub(same_words(1 << 23), builder.lshr(bits, same_words(9)))
        f = builder.fsub(builder.sitofp(rest, FLOATS), _same_floats(0.5))
        bits = builder.sitofp(builder.bitcast(f, WORDS), FLOATS)
        return vector.fma(builder, bits, _same_floats(_SCALE), _same_floats(_BASE))

    return vector.vector(types.int64, types.int64, types.uint32, types.uint32), generate


def _mix(builder: Any, h: Any) -> Any:
    h = builder.xor(h, builder.lshr(h, same_words(16)))
    h = builder.mul(h, same_words(noise.MIX_1))
    h = builder.xor(h, builder.lshr(h, same_words(13)))
    h = builder.mul(h, same_words(noise.MIX_2))
    return builder.xor(h, builder.lshr(h, same_words(16)))


def _same_floats(value: float) -> Any:
    return ir.Constant(FLOATS, [value] * LANES)
