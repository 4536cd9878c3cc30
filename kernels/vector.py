"""Vectors of 16 floats for compiled kernels; memory is an address and an index in numbers.

A compiler turns them into as many of the processor's as they need. The order of every sum is as
written, so a result does not depend on how wide those are. What takes a builder is for intrinsics.
"""

# ruff: noqa: ARG001 - numba wants these parameters.

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16

_FLOAT, _WORD, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOATS = ir.VectorType(_FLOAT, LANES)
WORDS = ir.VectorType(_WORD, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)


class _Vector(types.Type):
    def __init__(self) -> None:
        super().__init__(name="vector")


vector = _Vector()


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


@intrinsic
def load(typing_context: Any, address: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return read(builder, *args, FLOATS)

    return vector(types.int64, types.int64), generate


@intrinsic
def load_bfloat16(typing_context: Any, address: Any, index: Any) -> Any:
    """16 numbers of bfloat16, which are the upper halves of floats."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = builder.zext(read(builder, *args, _HALVES), WORDS)
        return builder.bitcast(builder.shl(words, same_words(16)), FLOATS)

    return vector(types.int64, types.int64), generate


@intrinsic
def store_bfloat16(typing_context: Any, address: Any, index: Any, value: Any) -> Any:
    """Of floats that are `rounded`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = builder.lshr(builder.bitcast(args[2], WORDS), same_words(16))
        place = _place(builder, args[0], args[1], _HALVES)
        builder.store(builder.trunc(words, _HALVES), place).align = 2
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, vector), generate


@intrinsic
def rounded(typing_context: Any, value: Any) -> Any:
    """The nearest numbers of bfloat16, the even ones of two, as floats; NaN stays NaN."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], WORDS)
        odd = builder.and_(builder.lshr(bits, same_words(16)), same_words(1))
        nearest = builder.add(bits, builder.add(odd, same_words(0x7FFF)))
        is_nan = builder.fcmp_unordered("uno", args[0], args[0])
        words = builder.select(is_nan, builder.or_(bits, same_words(0x400000)), nearest)
        return builder.bitcast(builder.and_(words, same_words(0xFFFF0000)), FLOATS)

    return vector(vector), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Asks for the line of the cache that this address is in; any address will do."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ask(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def broadcast(typing_context: Any, address: Any, index: Any) -> Any:
    """One float in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return read_one(builder, *args)

    return vector(types.int64, types.int64), generate


@intrinsic
def spread(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _spread(builder, args[0])

    return vector(types.float32), generate


@intrinsic
def store(typing_context: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        write(builder, *args)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, vector), generate


@intrinsic
def add(typing_context: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fadd(*args)

    return vector(vector, vector), generate


@intrinsic
def multiply_add(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return fma(builder, *args)

    return vector(vector, vector, vector), generate


@intrinsic
def divide(typing_context: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fdiv(*args)

    return vector(vector, vector), generate


@intrinsic
def or_nan(typing_context: Any, a: Any, b: Any) -> Any:
    """a, but NaN where b is."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        is_nan = builder.fcmp_unordered("uno", args[1], args[1])
        return builder.select(is_nan, args[1], args[0])

    return vector(vector, vector), generate


@intrinsic
def larger(typing_context: Any, a: Any, b: Any) -> Any:
    """b where a is NaN."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _larger(builder, *args)

    return vector(vector, vector), generate


@intrinsic
def total(typing_context: Any, a: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _fold(builder, args[0], builder.fadd)

    return types.float32(vector), generate


@intrinsic
def largest(typing_context: Any, a: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _fold(builder, args[0], lambda x, y: _larger(builder, x, y))

    return types.float32(vector), generate


@intrinsic
def transpose(
    typing_context: Any, source: Any, source_line: Any, target: Any, target_line: Any
) -> Any:
    """16 vectors, source_line numbers apart, to 16 others, target_line numbers apart.

    Four times the vectors of the two halves are interleaved, number by number: each time the bits
    of a number's place turn round by one, until line and column have changed sides.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, source_line, target, target_line = args
        half = LANES // 2
        merges = [
            ir.Constant(WORDS, [lane for i in lanes for lane in (i, i + LANES)])
            for lanes in (range(half), range(half, LANES))
        ]
        lines = [
            read(builder, source, builder.mul(source_line, ir.Constant(_LONG, i)), FLOATS)
            for i in range(LANES)
        ]
        for _ in range(4):
            lines = [
                builder.shuffle_vector(lines[i], lines[i + half], merge)
                for i in range(half)
                for merge in merges
            ]
        for i, line in enumerate(lines):
            write(builder, target, builder.mul(target_line, ir.Constant(_LONG, i)), line)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


def spread_word(builder: Any, value: Any) -> Any:
    first = ir.Constant(_WORD, 0)
    one = builder.insert_element(ir.Constant(WORDS, ir.Undefined), value, first)
    return builder.shuffle_vector(one, one, ir.Constant(WORDS, [0] * LANES))


def same_words(value: int) -> Any:
    """A constant in all lanes."""
    return ir.Constant(WORDS, [value] * LANES)


def _place(builder: Any, address: Any, index: Any, kind: Any) -> Any:
    size = ir.Constant(_LONG, 2 if kind is _HALVES else 4)
    at = builder.add(address, builder.mul(index, size))
    return builder.inttoptr(at, kind.as_pointer())


def read(builder: Any, address: Any, index: Any, kind: Any) -> Any:
    value = builder.load(_place(builder, address, index, kind))
    value.align = 2 if kind is _HALVES else 4
    return value


def read_one(builder: Any, address: Any, index: Any) -> Any:
    """A float in all lanes."""
    return _spread(builder, builder.load(_place(builder, address, index, _FLOAT)))


def ask(builder: Any, address: Any, level: int = 1) -> None:
    """`level`: of the cache, 1 or 2."""
    place = builder.inttoptr(address, cgutils.voidptr_t)
    kind = ir.FunctionType(ir.VoidType(), [place.type, _WORD, _WORD, _WORD])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [place, *(ir.Constant(_WORD, value) for value in (0, 4 - level, 1))])


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
    name = f"llvm.fma.v{LANES}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])


def write(builder: Any, address: Any, index: Any, value: Any) -> None:
    builder.store(value, _place(builder, address, index, FLOATS)).align = 4


def _spread(builder: Any, value: Any) -> Any:
    first = ir.Constant(_WORD, 0)
    one = builder.insert_element(ir.Constant(FLOATS, ir.Undefined), value, first)
    return builder.shuffle_vector(one, one, ir.Constant(WORDS, [0] * LANES))


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _fold(builder: Any, value: Any, operation: Callable[[Any, Any], Any]) -> Any:
    """All lanes in one, in halves."""
    distance = LANES // 2
    while distance:
        lanes = [(i + distance) % LANES for i in range(LANES)]
        turned = builder.shuffle_vector(value, value, ir.Constant(WORDS, lanes))
        value = operation(value, turned)
        distance //= 2
    return builder.extract_element(value, ir.Constant(_WORD, 0))
