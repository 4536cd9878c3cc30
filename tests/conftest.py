"""For all tests: few threads, the longest first, and GPU tests skipped where there is no GPU."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

_HERE = Path(__file__).parent

# Before torch or tokenizers is imported. Test processes share the cores, and a fixed
# number of threads keeps floating-point sums the same from run to run.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A proxy of the machine must not catch calls to a server of the tests.
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "localhost,127.0.0.1,::1"


# Files that take from ten seconds to minutes: begun first, so that no process is left alone with
# one of them. Those that wait for much are among those that compute, which would else have the
# cores to themselves, and leave them idle after that.
_LONGEST = (
    "kernels/test_compiled_kernels.py",
    "kernels/test_interpreted_kernels.py",
    "end_to_end/test_neighbours.py",
    "end_to_end/test_front_ends.py",
    "worker/model/test_llama_smollm2.py",
    "end_to_end/test_lifecycle.py",
    "deploy/local/test_local.py",
    "end_to_end/test_default_model.py",
    "end_to_end/test_worker_faults.py",
    "scheduler/core/test_random_load.py",
    "deploy/loadtest/test_run.py",
    "scheduler/core/test_static_random_load.py",
    "end_to_end/test_prefix_cache.py",
    "scheduler/api/test_server.py",
    "end_to_end/test_volume.py",
    "scheduler/core/test_random_recovery.py",
)


def _turn(item: pytest.Item) -> int:
    name = item.path.relative_to(_HERE).as_posix()
    return _LONGEST.index(name) if name in _LONGEST else len(_LONGEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items or _has_cuda():
        return
    for item in gpu_items:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


# What collecting makes, modules and thousands of tests, stays to the end. To look through it for
# garbage takes a third of the time that it takes to make.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # Triton's bindings complain of what is left at the end of a process


def _has_cuda() -> bool:
    # Here, not above: most runs have no GPU test and need no torch.
    import torch

    return torch.cuda.is_available()
