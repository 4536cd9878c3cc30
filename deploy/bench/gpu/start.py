"""How long a worker takes from its start until it listens, and with what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from deploy.bench.worker_process import WorkerProcess

_LINE = re.compile(r"(\S+Z) \S+ \S+: (.*)")


@dataclass(frozen=True, slots=True)
class Start:
    seconds: float
    log: tuple[tuple[float, str], ...]  # seconds from the start, and what the worker logged then

    @classmethod
    def of(cls, worker: WorkerProcess) -> Start:
        """Waits until it listens; raises as that does."""
        seconds = worker.wait_until_listening()
        return cls(seconds, log_times(worker.child.lines, worker.started_at))

    def describe(self) -> str:
        """For people, a line for each of the log's."""
        return "\n".join(f"{seconds:8.2f} s  {text}" for seconds, text in self.log)


def log_times(lines: Sequence[str], started_at: float) -> tuple[tuple[float, str], ...]:
    """Of a log for people (the moments in it are UTC); other lines are left out."""
    found = []
    for line in lines:
        if match := _LINE.fullmatch(line):
            moment = datetime.fromisoformat(match[1]).timestamp()
            found.append((round(moment - started_at, 3), match[2]))
    return tuple(found)
