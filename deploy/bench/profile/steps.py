"""The steps of one load as seen by scheduler and worker, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deploy.bench.profile.trace_file import Trace

_EDGE = 0.1  # of the steady steps, at either end, that are left out

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Moments in ms from `origin` on (of time.monotonic()), in the order of a step's way; float64
    [n] each.

    The device tells durations, not moments: a step starts `idle` after the end of the one before.
    The chain of these is put as late as it can be with every step done before the worker found it
    so. What the durations leave of it is `copy`: tokens on their way to the host.
    """

    origin: float
    planning: Column  # the last answer, or else step, before it was off the engine's hands
    sending: Column  # the engine hands it to the link
    sent: Column
    arrived: Column  # at the worker
    started: Column  # checks
    launching: Column
    launched: Column
    computing: Column  # the device begins
    sampling: Column
    sampled: Column
    done: Column  # found so by the worker
    answered: Column
    taken: Column  # by the scheduler's link
    idle: Column  # duration: the device before this step
    copy: float  # duration, on the device after each

    def __len__(self) -> int:
        return len(self.sending)

    @property
    def interval(self) -> float:
        """From one step to the next, on average."""
        return float((self.sampled - self.computing + self.idle).mean()) + self.copy


def steady_decodes(scheduler: Trace, worker: Trace, streams: int, since: int, until: int) -> Steps:
    """The longest stretch of steps between two moments (ns) in which `streams` sequences have one
    token each, without its ends. Raises ValueError if there are too few to tell anything."""
    columns = _joined(scheduler, worker)
    wanted = (columns["sequences"] == streams) & (columns["tokens"] == streams)
    wanted &= (columns["sending"] >= since) & (columns["taken"] <= until)
    first, last = _longest_run(wanted)
    edge = round(_EDGE * (last - first))
    first, last = first + edge, last - edge
    if last - first < 4:
        raise ValueError(
            f"{last - first} steady steps of {streams} streams, at least 4 are needed: ask for "
            "more output"
        )
    steady = {name: values[first:last] for name, values in columns.items()}
    return _on_one_clock(steady, chained=True)


def steps_of_prompts(
    scheduler: Trace, worker: Trace, spans: Sequence[tuple[float, float]]
) -> Steps:
    """The one step of each prompt, handed over within its span (seconds, time.monotonic()). Raises
    ValueError where there is another number of them."""
    columns = _joined(scheduler, worker)
    sending = columns["sending"] / 1e9
    found = [np.flatnonzero((sending > since) & (sending < until)) for since, until in spans]
    if counts := {len(steps) for steps in found} - {1}:
        raise ValueError(f"a prompt took {max(counts)} steps, not one: take a shorter --prompt")
    chosen = np.concatenate(found)
    prompts = {name: values[chosen] for name, values in columns.items()}
    return _on_one_clock(prompts, chained=False)


def _joined(scheduler: Trace, worker: Trace) -> dict[str, NDArray[np.int64]]:
    """Columns of the steps that both know."""
    _, ours, theirs = np.intersect1d(
        scheduler.columns["step_id"], worker.columns["step_id"], return_indices=True
    )
    joined = {name: values[theirs] for name, values in worker.columns.items()}
    return joined | {name: values[ours] for name, values in scheduler.columns.items()}


def _longest_run(wanted: NDArray[np.bool_]) -> tuple[int, int]:
    """First, and one after the last, of the longest stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], wanted.astype(np.int8), [0]])))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(edges[2 * longest]), int(edges[2 * longest + 1])


def _on_one_clock(columns: dict[str, NDArray[np.int64]], *, chained: bool) -> Steps:
    """`chained`: the steps follow each other without a gap, so that the device's moments can be
    told; else each is taken for done when it was found so."""
    origin = int(columns["sending"][0])
    moments = ("sending", "sent", "taken", "launching", "launched", "done")
    at = {name: (columns[name] - origin) / 1e6 for name in moments}
    spent = {
        name: np.maximum(columns[name], 0) / 1e6
        for name in ("queue", "input", "device", "sample", "total", "idle")
    }
    events = np.sort(np.concatenate([at["taken"], at["sent"]]))
    before = np.searchsorted(events, at["sending"], side="right") - 1
    planning = np.where(before >= 0, events[before], at["sending"])
    busy = spent["device"] + spent["sample"]
    inline = np.where(columns["done"] == columns["launched"], busy, 0.0)
    started = at["launched"] - inline - spent["input"]
    arrived = started - spent["queue"]
    sampled, copy = _device_ends(at["done"], spent["idle"], busy) if chained else (at["done"], 0.0)
    return Steps(
        origin=origin / 1e6,
        planning=planning,
        sending=at["sending"],
        sent=at["sent"],
        arrived=arrived,
        started=started,
        launching=at["launching"],
        launched=at["launched"],
        computing=sampled - busy,
        sampling=sampled - spent["sample"],
        sampled=sampled,
        done=at["done"],
        answered=arrived + spent["total"],
        taken=at["taken"],
        idle=spent["idle"],
        copy=copy,
    )


def _device_ends(done: Column, idle: Column, busy: Column) -> tuple[Column, float]:
    """When each step's tokens were sampled, and how long copying them takes."""
    ends = np.cumsum(idle + busy)
    missing = (done[-1] - done[0]) - (ends[-1] - ends[0])
    copy = max(0.0, float(missing) / (len(ends) - 1))
    ends += copy * np.arange(len(ends))
    return ends + float((done - ends).min()) - copy, copy
