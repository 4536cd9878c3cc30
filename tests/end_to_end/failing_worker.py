"""`python -m tests.end_to_end.failing_worker ERROR STEP FLAGS`: the worker, but its STEP-th step
raises what torch does for want of memory ("memory") or after an error of the device ("device")."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import torch

from worker import __main__ as worker
from worker.executor import Pending
from worker.runner import TorchRunner
from worker.step import CheckedStep

ERRORS = {
    "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "device": RuntimeError("CUDA error: an illegal memory access was encountered"),
}


def fail_at(number: int, error: Exception) -> None:
    launch, numbers = TorchRunner.launch, itertools.count(1)

    def launch_or_fail(self: Any, step: CheckedStep) -> Sequence[Pending]:
        if next(numbers) == number:
            raise error
        return launch(self, step)

    TorchRunner.launch = launch_or_fail  # type: ignore[method-assign]


if __name__ == "__main__":
    fail_at(int(sys.argv[2]), ERRORS[sys.argv[1]])
    sys.argv[1:3] = []
    worker.main()
