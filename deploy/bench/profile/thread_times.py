"""CPU time of another process's threads, as the kernel counts it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

_REST = "others"  # threads that Python does not know: gRPC's, the driver's


def thread_times(pid: int) -> dict[int, float]:
    """Seconds on a CPU so far, by thread id. Empty once the process is gone."""
    found = {}
    with contextlib.suppress(OSError):
        for folder in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found[int(folder.name)] = int((folder / "schedstat").read_text().split()[0]) / 1e9
    return found


def spent_by_name(
    before: Mapping[int, float], after: Mapping[int, float], names: Mapping[int, str]
) -> dict[str, float]:
    """Seconds between the two, by the threads' names, the most first; those without a name
    together."""
    spent: dict[str, float] = {}
    for thread, seconds in after.items():
        name = names.get(thread, _REST)
        spent[name] = spent.get(name, 0.0) + seconds - before.get(thread, 0.0)
    return dict(sorted(spent.items(), key=lambda item: -item[1]))
