"""What a softmax over vectors of 16 floats needs besides `kernels.vector`: powers of 2, weights
rounded to pairs of bfloat16, and numbers in other lanes."""

# ruff: noqa: ARG001 - numba wants these parameters.

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.vector import FLOATS, LANES, WORDS, ask, fma, read, same_words, vector, write

_WORD, _LONG = ir.IntType(32), ir.IntType(64)
_HALVES = ir.VectorType(ir.IntType(16), 2 * LANES)
_QUARTER = LANES // 4

# Of 2^r on [-1/2, 1/2]: of all with this degree and 1 at 0 the one with the least relative error.
_POWER_OF_2 = 0.009582853143956, 0.05590642672976777, 0.2402409862271377, 0.6931241931539482, 1.0


@intrinsic
def power_of_2(typing_context: Any, x: Any) -> Any:
    """2^x for x up to 0, within 2^-18 of it: 1 for 0, 0 for x up to -127, NaN for NaN. The nearest
    whole number goes into the exponent, the rest into a polynomial."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        least, whole = _same(-127.0), _same(float(3 << 22))
        x = builder.select(builder.fcmp_ordered("<", args[0], least), least, args[0])
        shifted = builder.fadd(x, whole)  # so large that no place is left for a fraction
        rest = builder.fsub(x, builder.fsub(shifted, whole))
        power = _same(_POWER_OF_2[0])
        for factor in _POWER_OF_2[1:]:
            power = fma(builder, power, rest, _same(factor))
        n = builder.shl(builder.bitcast(shifted, WORDS), same_words(23))
        return builder.bitcast(builder.add(builder.bitcast(power, WORDS), n), FLOATS)

    return vector(vector), generate


@intrinsic
def subtract(typing_context: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fsub(*args)

    return vector(vector, vector), generate


@intrinsic
def multiply(typing_context: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fmul(*args)

    return vector(vector, vector), generate


@intrinsic
def where_larger(typing_context: Any, a: Any, b: Any, value: Any, other: Any) -> Any:
    """`value` where a is larger than b, else `other`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, value, other = args
        return builder.select(builder.fcmp_ordered(">", a, b), value, other)

    return vector(vector, vector, vector, vector), generate


@intrinsic
def rounded_away(typing_context: Any, value: Any) -> Any:
    """The nearest numbers of bfloat16, the farther one from 0 of two, as floats; NaN stays NaN if
    it comes from numbers of bfloat16 or from an operation."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = builder.add(builder.bitcast(args[0], WORDS), same_words(0x8000))
        return builder.bitcast(builder.and_(words, same_words(0xFFFF0000)), FLOATS)

    return vector(vector), generate


@intrinsic
def store_pairs(typing_context: Any, address: Any, index: Any, even: Any, odd: Any) -> Any:
    """Numbers of bfloat16, of two vectors in turn, from floats that are rounded to them."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, index, even, odd = args
        low = builder.lshr(builder.bitcast(even, WORDS), same_words(16))
        pairs = builder.bitcast(builder.or_(low, builder.bitcast(odd, WORDS)), FLOATS)
        write(builder, address, index, pairs)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, vector, vector), generate


@intrinsic
def pair_lines(typing_context: Any, even: Any, odd: Any, first: Any, second: Any) -> Any:
    """Two lines of 32 numbers of bfloat16 as 32 pairs of their numbers: of every 8 pairs the first
    4 go to one address and the others to another, which takes the fewest instructions. `unpaired`
    undoes that."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(_LONG, 0)
        lines = [read(builder, address, zero, _HALVES) for address in args[:2]]
        for address, start in zip(args[2:], (0, 4), strict=True):
            columns = [i for part in range(start, 2 * LANES, 8) for i in range(part, part + 4)]
            lanes = [lane for i in columns for lane in (i, i + 2 * LANES)]
            mask = ir.Constant(ir.VectorType(_WORD, 2 * LANES), lanes)
            pairs = builder.shuffle_vector(*lines, mask)
            write(builder, address, zero, builder.bitcast(pairs, FLOATS))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic(prefer_literal=True)
def unpaired(typing_context: Any, first: Any, second: Any, half: Any) -> Any:
    """The first half, 0, or the second, 1, of what `pair_lines` took apart to two vectors."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = half.literal_value * LANES // 2
        quarters = [part + i for part in (start, start + _QUARTER) for i in (0, LANES)]
        lanes = [quarter + i for quarter in quarters for i in range(_QUARTER)]
        return builder.shuffle_vector(args[0], args[1], ir.Constant(WORDS, lanes))

    return vector(vector, vector, half), generate


@intrinsic(prefer_literal=True)
def every_other_quarter(typing_context: Any, a: Any, b: Any, start: Any) -> Any:
    """Of the eight quarters of a and b the even ones, or with start 1 the odd ones."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        quarters = range(start.literal_value * _QUARTER, 2 * LANES, 2 * _QUARTER)
        lanes = [quarter + i for quarter in quarters for i in range(_QUARTER)]
        return builder.shuffle_vector(args[0], args[1], ir.Constant(WORDS, lanes))

    return vector(vector, vector, start), generate


@intrinsic(prefer_literal=True)
def turned(typing_context: Any, value: Any, distance: Any) -> Any:
    """Lane i is lane i + distance, round the end."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = [(i + distance.literal_value) % LANES for i in range(LANES)]
        return builder.shuffle_vector(args[0], args[0], ir.Constant(WORDS, lanes))

    return vector(vector, distance), generate


@intrinsic
def quarter_numbers(typing_context: Any) -> Any:
    """0, 1, 2 and 3, in all lanes of a quarter each."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(FLOATS, [float(i // _QUARTER) for i in range(LANES)])

    return vector(), generate


@intrinsic
def transpose_quarters(typing_context: Any, source: Any, target: Any) -> Any:
    """16 lines of 4 numbers to 4 lines of 16, each one after the other: from two vectors each time
    two of the lines, as far as these reach, then the lines whole."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, target = args
        a, b, c, d = (
            read(builder, source, ir.Constant(_LONG, i * LANES), FLOATS) for i in range(4)
        )
        for line in (0, 2):
            lanes = [i + j for i in (line, line + 1) for j in range(0, 2 * LANES, _QUARTER)]
            mask = ir.Constant(WORDS, lanes)
            left, right = builder.shuffle_vector(a, b, mask), builder.shuffle_vector(c, d, mask)
            for half in range(2):
                start = half * LANES // 2
                lanes = [start + i + j for j in (0, LANES) for i in range(LANES // 2)]
                whole = builder.shuffle_vector(left, right, ir.Constant(WORDS, lanes))
                write(builder, target, ir.Constant(_LONG, (line + half) * LANES), whole)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def prefetch_to_l2(typing_context: Any, address: Any) -> Any:
    """Asks for the line of the cache that this address is in, for the second level, which waits for
    more lines at a time than the first; any address will do."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ask(builder, args[0], level=2)
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _same(value: float) -> Any:
    return ir.Constant(FLOATS, [value] * LANES)
