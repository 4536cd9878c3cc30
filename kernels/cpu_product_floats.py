"""Products of the CPU face in vectors of floats: bfloat16 is the upper half of one."""

from typing import Any

from kernels import vector
from kernels.compiled import inner, kernel
from kernels.cpu_numbers import BFLOAT16, widen
from kernels.vector import FLOATS
from kernels.vector_product import Method, most_columns, run_by

__all__ = ["most_columns", "product"]


def _add(builder: Any, x: Any, pair: Any, weights: list[Any], sums: list[Any]) -> list[Any]:
    """Each product and its sum rounded once."""
    lower = [builder.shl(weight, vector.same_words(16)) for weight in weights]
    upper = [builder.and_(weight, vector.same_words(0xFFFF0000)) for weight in weights]
    for i, halves in enumerate((lower, upper)):
        index = builder.add(builder.mul(pair, pair.type(2)), pair.type(i))
        number = vector.read_one(builder, x, index)
        sums = [
            vector.fma(builder, builder.bitcast(half, FLOATS), number, total)
            for half, total in zip(halves, sums, strict=True)
        ]
    return sums


@inner
def _fill(x: int, k: int, out: int) -> None:
    widen(x, BFLOAT16, k, out)


_run = run_by(Method(__name__, _add, _fill, size=4))


@kernel
def product(arguments: Any) -> None:
    _run(arguments)
