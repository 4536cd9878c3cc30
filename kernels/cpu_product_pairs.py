"""Products of the CPU face in vectors of pairs of bfloat16 (AVX512-BF16)."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from kernels import vector
from kernels.compiled import inner, kernel
from kernels.vector import FLOATS, LANES
from kernels.vector_product import Method, most_columns, run_by

__all__ = ["most_columns", "product"]


class _BFloat16(ir.Type):
    """llvmlite has none."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat16)

    def __hash__(self) -> int:
        return hash(_BFloat16)


_PAIRS = ir.VectorType(_BFloat16(), 2 * LANES)


def _add(builder: Any, x: Any, pair: Any, weights: list[Any], sums: list[Any]) -> list[Any]:
    """Both products of a pair at once."""
    numbers = builder.bitcast(vector.read_one(builder, x, pair), _PAIRS)
    kind = ir.FunctionType(FLOATS, [FLOATS, _PAIRS, _PAIRS])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return [
        builder.call(function, [total, builder.bitcast(weight, _PAIRS), numbers])
        for total, weight in zip(sums, weights, strict=True)
    ]


@inner
def _fill(x: int, k: int, out: int) -> None:
    for i in range(0, k // 2, LANES):
        vector.store(out, i, vector.load(x, i))


_run = run_by(Method(__name__, _add, _fill, size=2))


@kernel
def product(arguments: Any) -> None:
    _run(arguments)
