"""What torch's profiler sees of some steps: each kernel's time, or on a CPU each operation's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_LOOK_EVERY = 16  # steps


class KernelTimes:
    """`before_step` is called before each step is launched, on the launching thread. Once there is
    `wanted`, a file with a number in it, so many steps are profiled; `found` then has one more list
    of a record for each kernel, and the file is gone."""

    def __init__(self, wanted: Path) -> None:
        self.found: list[list[dict[str, float | str]]] = []
        self._wanted = wanted
        self._steps = 0
        self._left = 0
        self._count = 0
        self._profiler: Any = None

    def before_step(self) -> None:
        self._steps += 1
        if self._profiler is not None:
            self._left -= 1
            if self._left == 0:
                self._end()
        elif self._steps % _LOOK_EVERY == 0 and self._wanted.exists():
            self._begin(int(self._wanted.read_text()))

    def _begin(self, steps: int) -> None:
        from torch.profiler import ProfilerActivity, profile

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
        self._wanted.unlink()

    def _record(self, event: Any, us: float) -> dict[str, float | str]:
        return {
            "name": event.key,
            "launches_per_step": event.count / self._count,
            "us_per_step": us / self._count,
        }


def _activity(activities: Any) -> Any:
    import torch

    return activities.CUDA if torch.cuda.is_available() else activities.CPU
