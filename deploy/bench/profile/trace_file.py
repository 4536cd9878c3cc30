"""What a traced process writes when it ends: a line for each step or request, and names."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_NAMES_EVERY = 64  # steps


@dataclass(slots=True)
class TraceFile:
    """`add` costs a list's append. Moments are time.monotonic_ns(), which all processes of a
    machine share."""

    columns: tuple[str, ...]
    steps: list[tuple[int, ...]] = field(default_factory=list)
    threads: dict[int, str] = field(default_factory=dict)  # by the system's id
    kernels: list[list[dict[str, float | str]]] = field(default_factory=list)  # of each profile

    def add(self, *values: int) -> None:
        """In the order of `columns`."""
        if len(self.steps) % _NAMES_EVERY == 0:
            self._name_threads()
        self.steps.append(values)

    def _name_threads(self) -> None:
        self.threads |= {t.native_id: t.name for t in threading.enumerate() if t.native_id}

    def save(self, path: Path) -> None:
        values = {
            "columns": self.columns,
            "steps": self.steps,
            "threads": self.threads,
            "kernels": self.kernels,
        }
        path.write_bytes(gzip.compress(json.dumps(values).encode(), 1))


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A TraceFile that was read back."""

    columns: dict[str, NDArray[np.int64]]  # each [steps], in the order of the first
    threads: dict[int, str]
    kernels: Sequence[Sequence[dict[str, float | str]]]

    @classmethod
    def load(cls, path: Path) -> Trace:
        values = json.loads(gzip.decompress(path.read_bytes()))
        steps = np.array(values["steps"], np.int64).reshape(-1, len(values["columns"]))
        steps = steps[np.argsort(steps[:, 0], kind="stable")]
        return cls(
            dict(zip(values["columns"], steps.T, strict=True)),
            {int(thread): name for thread, name in values["threads"].items()},
            values["kernels"],
        )
