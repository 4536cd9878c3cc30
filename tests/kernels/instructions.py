"""What multiplies on a CPU: all that this processor has, whether it is chosen or not."""

import pytest
import torch

from kernels import amx, cpu_product
from kernels.compiled import has

INSTRUCTIONS = ("amx", "pairs", "floats", "fp32")


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """Until the test's end, for the dtype that it returns. Skips a test where the processor
    cannot."""
    able = {
        "amx": amx.is_available(),
        "pairs": has("avx512bf16"),
        "floats": has("avx2", "fma"),
        "fp32": has("avx2", "fma"),
    }
    if not able[name]:
        pytest.skip(f"this processor has no instructions for {name}")
    dtype = torch.float32 if name == "fp32" else torch.bfloat16
    monkeypatch.setitem(cpu_product.INSTRUCTIONS, dtype, cpu_product.instructions(name))
    return dtype


def use_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves all products to the library until the test's end."""
    monkeypatch.setattr(cpu_product, "INSTRUCTIONS", {})
