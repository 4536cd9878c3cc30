"""What a soak found: a table, JSON, and a plot of the memory."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deploy.soak.run import Result
from deploy.soak.stand import Memory

# Memory at the end may be this much of that after SETTLED seconds.
MOST_GROWTH = 1.05
SETTLED = 300.0
_SPAN = 30.0  # seconds over which a median is taken


def growth(memory: list[Memory], name: str) -> float | None:
    """Resident memory at the end over that after SETTLED seconds, of the last process of that
    name; None if it did not live twice as long."""
    last = [m for m in memory if m.name == name]
    last = [m for m in last if m.pid == last[-1].pid]
    if not last or last[-1].age < 2 * SETTLED:
        return None
    early = [m.rss for m in last if SETTLED <= m.age < SETTLED + _SPAN]
    late = [m.rss for m in last if m.age > last[-1].age - _SPAN]
    return statistics.median(late) / statistics.median(early)


def table(name: str, result: Result) -> str:
    faults = Counter(fault.kind for fault in result.faults)
    lines = [
        f"{name}: {result.requests} requests, {result.tokens} tokens, "
        f"{result.mismatches} mismatches, {result.leaks} leaks, {len(result.complaints)} complaints"
    ]
    lines += _columns("fault", "times", sorted(faults.items()))
    lines.append(
        f"  {result.with_steps_in_flight} of the faults came with steps in flight; the worker was "
        f"started {result.worker_starts} times"
    )
    if result.recoveries:
        lines.append(
            f"  from a new worker's listening to the next token: median "
            f"{statistics.median(result.recoveries):.2f} s, at most {max(result.recoveries):.2f} s"
        )
    ends = [(f"{behaviour} {status}", n) for (behaviour, status), n in result.outcomes.items()]
    lines += _columns("request", "calls", sorted(ends))
    for one in ("scheduler", "worker"):
        if (grown := growth(result.memory, one)) is not None:
            lines.append(f"  {one}: resident memory at the end {grown:.3f} of that after 5 minutes")
    return "\n".join(lines)


def judge_growth(result: Result) -> None:
    """Adds a complaint for a process whose memory grew."""
    for name in ("scheduler", "worker"):
        grown = growth(result.memory, name)
        if grown is not None and grown > MOST_GROWTH:
            result.complaints.append(f"the {name}'s memory grew to {grown:.3f} of what it was")


def as_json(result: Result) -> dict[str, Any]:
    return {
        "requests": result.requests,
        "tokens": result.tokens,
        "mismatches": result.mismatches,
        "leaks": result.leaks,
        "preemptions": result.preemptions,
        "with_steps_in_flight": result.with_steps_in_flight,
        "recoveries": [round(seconds, 3) for seconds in result.recoveries],
        "worker_starts": result.worker_starts,
        "outcomes": {f"{b} {s}": n for (b, s), n in sorted(result.outcomes.items())},
        "faults": [asdict(fault) for fault in result.faults],
        "growth": {name: growth(result.memory, name) for name in ("scheduler", "worker")},
        "complaints": result.complaints,
    }


def plot_memory(path: Path, results: dict[str, Result]) -> None:
    """Resident memory of each process over time, the faults as ticks below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(results), 1, figsize=(9, 3.2 * len(results)), squeeze=False, layout="constrained"
    )
    for axis, (name, result) in zip(axes[:, 0], results.items(), strict=True):
        for process, colour in (("scheduler", "#0072B2"), ("worker", "#D55E00")):
            pids = dict.fromkeys(m.pid for m in result.memory if m.name == process)
            for i, pid in enumerate(pids):
                mine = [m for m in result.memory if m.pid == pid]
                axis.plot(
                    [m.at for m in mine],
                    [m.rss / 2**20 for m in mine],
                    color=colour,
                    label=process if not i else None,
                )
        offset = result.memory[0].at if result.memory else 0.0
        times = [offset + fault.at for fault in result.faults]
        axis.plot(times, [0] * len(times), "|", color="black", markersize=12, label="fault")
        axis.set(title=name, xlabel="seconds", ylabel="resident memory, MiB", ylim=(0, None))
        axis.legend(loc="center right")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _columns(head: str, unit: str, rows: list[tuple[str, int]]) -> list[str]:
    if not rows:
        return []
    width = max(len(head), *(len(name) for name, _ in rows))
    return [f"  {head:<{width}}  {unit:>7}"] + [f"  {name:<{width}}  {n:>7}" for name, n in rows]
