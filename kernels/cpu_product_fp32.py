"""Products of the CPU face in float32.

A result is one of sums over 96 numbers: in a single sum a large term (a massive activation) would
cost all later ones their last bits.
"""

from typing import Any

from kernels import vector
from kernels.compiled import inner, kernel
from kernels.cpu_numbers import FLOAT32, widen
from kernels.vector import FLOATS
from kernels.vector_product import Method, most_columns, run_by

__all__ = ["most_columns", "product"]

_SUMMED = 96


def _add(builder: Any, x: Any, i: Any, weights: list[Any], sums: list[Any]) -> list[Any]:
    """Each product and its sum rounded once."""
    number = vector.read_one(builder, x, i)
    return [
        vector.fma(builder, builder.bitcast(weight, FLOATS), number, total)
        for weight, total in zip(weights, sums, strict=True)
    ]


@inner
def _fill(x: int, k: int, out: int) -> None:
    widen(x, FLOAT32, k, out)


_run = run_by(Method(__name__, _add, _fill, size=4, kind=FLOAT32, summed=_SUMMED))


@kernel
def product(arguments: Any) -> None:
    _run(arguments)
