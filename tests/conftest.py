"""For all tests: few threads, and GPU tests skipped where there is no GPU."""

from __future__ import annotations

import os

import pytest

# Before torch or tokenizers is imported. Test processes share the cores, and a fixed
# number of threads keeps floating-point sums the same from run to run.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A proxy of the machine must not catch calls to a server of the tests.
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "localhost,127.0.0.1,::1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items or _has_cuda():
        return
    for item in gpu_items:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _has_cuda() -> bool:
    # Here, not above: most runs have no GPU test and need no torch.
    import torch

    return torch.cuda.is_available()
