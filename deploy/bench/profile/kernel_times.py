"""What torch's profiler sees of some steps: each kernel's time, or on a CPU each operation's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.step import CheckedStep

_LOOK_EVERY = 16  # steps


@dataclass(frozen=True, slots=True)
class Wanted:
    """So many steps, from the first on that decodes all `streams`."""

    steps: int
    streams: int

    def __str__(self) -> str:
        return f"{self.steps} {self.streams}"

    @staticmethod
    def parse(text: str) -> Wanted:
        return Wanted(*map(int, text.split()))

    def begins_with(self, step: CheckedStep) -> bool:
        return len(step.rows) == self.streams and bool((step.query_lens == 1).all())


class KernelTimes:
    """`before_step` is called before each step is launched, on the launching thread. Once there is
    the file `path`, a `Wanted`, these steps are profiled; `found` then has one more list of a
    record for each kernel, and the file is gone."""

    def __init__(self, path: Path) -> None:
        self.found: list[list[dict[str, float | str]]] = []
        self._path = path
        self._wanted: Wanted | None = None
        self._steps = 0
        self._left = 0
        self._count = 0
        self._profiler: Any = None

    def before_step(self, step: CheckedStep) -> None:
        self._steps += 1
        if self._profiler is not None:
            self._left -= 1
            if self._left == 0:
                self._end()
        elif self._wanted is not None:
            if self._wanted.begins_with(step):
                self._begin(self._wanted.steps)
        elif self._steps % _LOOK_EVERY == 0 and self._path.exists():
            self._wanted = Wanted.parse(self._path.read_text())

    def _begin(self, steps: int) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the steps before are not to be among them
        self._left = self._count = steps
        self._profiler = profile(activities=[_activity(ProfilerActivity)])
        self._profiler.start()

    def _end(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        events = profiler.key_averages()
        # With a card the host's calls are among them; what took time on it is a kernel or a copy.
        if any(event.self_device_time_total for event in events):
            times = [(event, event.self_device_time_total) for event in events]
        else:
            times = [(event, event.self_cpu_time_total) for event in events]
        records = [self._record(event, us) for event, us in times if us]
        self.found.append(sorted(records, key=lambda record: -float(record["us_per_step"])))
        self._wanted = None
        self._path.unlink()

    def _record(self, event: Any, us: float) -> dict[str, float | str]:
        return {
            "name": event.key,
            "launches_per_step": event.count / self._count,
            "us_per_step": us / self._count,
        }


def _activity(activities: Any) -> Any:
    import torch

    return activities.CUDA if torch.cuda.is_available() else activities.CPU
