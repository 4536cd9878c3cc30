"""What multiplies bfloat16 on a CPU: all that this processor has, whether it is chosen or not."""

import pytest

from kernels import amx, cpu_product
from kernels.compiled import has

INSTRUCTIONS = ("amx", "pairs", "floats")


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test's end. Skips it where the processor cannot."""
    able = {
        "amx": amx.is_available(),
        "pairs": has("avx512bf16"),
        "floats": has("avx2", "fma"),
    }
    if not able[name]:
        pytest.skip(f"this processor has no instructions for {name}")
    monkeypatch.setattr(cpu_product, "INSTRUCTIONS", cpu_product.instructions(name))
