"""`python -m tests.end_to_end.failing_worker ERROR STEP FLAGS`: the worker, but its STEP-th step
fails for want of memory ("memory") or by an error of the device ("device"). On a GPU it really
does: more is asked for than the card has, or a kernel writes where nothing is. On a CPU it raises
what torch does then."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from worker import __main__ as worker
from worker.executor import Pending
from worker.runner import TorchRunner
from worker.step import CheckedStep

ERRORS = {
    "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "device": RuntimeError("CUDA error: an illegal memory access was encountered"),
}


@triton.jit
def write_far_away(start, distance):
    tl.store(start + distance.to(tl.int64), 0)


def fail(error: str, device: str) -> None:
    """Raises, or leaves the device with an error that is found later."""
    if device == "cpu":
        raise ERRORS[error]
    if error == "memory":
        torch.empty(1 << 46, dtype=torch.uint8, device=device)
    write_far_away[(1,)](torch.empty(1, dtype=torch.uint8, device=device), 1 << 46)


def fail_at(number: int, error: str) -> None:
    launch, numbers = TorchRunner.launch, itertools.count(1)

    def launch_or_fail(self: Any, step: CheckedStep) -> Sequence[Pending]:
        if next(numbers) == number:
            fail(error, self.geometry.device)
        return launch(self, step)

    TorchRunner.launch = launch_or_fail  # type: ignore[method-assign]


if __name__ == "__main__":
    fail_at(int(sys.argv[2]), sys.argv[1])
    sys.argv[1:3] = []
    worker.main()
