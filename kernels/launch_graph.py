"""Launches of a CPU's compiled kernels, captured once and then replayed by one call.

Between the launches of a small model's step the interpreter, the allocator and the libraries below
take a quarter of its time. A graph has the launches with all their arguments: it is right for other
numbers at the same places, so whatever differs from step to step is copied to where it was at the
capture.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import numpy as np
import torch

from kernels import Ops, PackedWeight
from kernels.compiled import LAUNCH, launch_of, run_launches, set_capture
from kernels.cpu_product import packed


def can_capture(ops: Ops, weights: Iterable[PackedWeight]) -> bool:
    """Whether all that such a model does between embedding and logits are launches."""
    return ops.face == "cpu" and all(packed(weight) for weight in weights)


class GraphMemory:
    """What captured kernels write, shared by a model's graphs for up to `most_rows` rows, which run
    one at a time: the i-th result of a width is in the i-th place of that width."""

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._places: dict[int, list[torch.Tensor]] = defaultdict(list)  # by bytes of a row

    def place(self, width: int, index: int) -> torch.Tensor:
        """The bytes of `most_rows` rows."""
        places = self._places[width]
        if index == len(places):
            places.append(torch.empty(self._most_rows * width, dtype=torch.uint8))
        return places[index]


class LaunchGraph:
    """Captures the launches of this thread while it is entered, which are carried out too."""

    def __init__(self, memory: GraphMemory) -> None:
        self._memory = memory
        self._taken: Counter[int] = Counter()  # results, by bytes of a row
        self._held: list[torch.Tensor] = []
        self._launches: list[list[int]] = []
        self._table = np.empty((0, LAUNCH), np.int64)

    def __enter__(self) -> Self:
        set_capture(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        set_capture(None)
        self._table = np.array(self._launches, np.int64).reshape(-1, LAUNCH)
        self._launches.clear()

    def add(self, function: int, threads: int, values: tuple[int, ...]) -> None:
        self._launches.append(launch_of(function, threads, values))

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        rows, width = shape[0], math.prod(shape[1:]) * dtype.itemsize
        place = self._memory.place(width, self._taken[width])
        self._taken[width] += 1
        return place[: rows * width].view(dtype).view(shape)

    def hold(self, tensor: torch.Tensor) -> None:
        self._held.append(tensor)

    def replay(self) -> None:
        """The launches again, on what lies at their places."""
        run_launches(self._table)
