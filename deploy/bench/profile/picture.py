"""Some steps beside each other: who did what, when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from numpy.typing import NDArray

from deploy.bench.profile.account import Account
from deploy.bench.profile.steps import Steps
from deploy.loadtest.plots.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, picture

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)  # of a step, by its number
_LANES = (
    "scheduler: plans, sends",
    "wire, out",
    "worker: waits in queue",
    "worker: checks",
    "worker: launches",
    "device",
    "worker: answers",
    "wire, back",
)
_DEVICE = _LANES.index("device")
_LEAST_LABEL = 0.025  # of the picture's width, that a number needs


def plot_timeline(account: Account, count: int, subtitle: str, path: Path) -> None:
    """`count` steps of the middle, with what came before and after them."""
    steps = account.steps
    count = min(count, len(steps))
    first = (len(steps) - count) // 2
    start, end = (
        float(steps.computing[first] - steps.idle[first]),
        float(steps.sampled[first + count - 1]),
    )
    question = (
        f"Batch {account.streams}: a step every {steps.interval:.3f} ms, of which the device "
        f"idles {account.idle_share:.1%}"
    )
    with picture(path, question, subtitle, None, 1, size=(13, 5.6)) as (axes,):
        _draw(axes, steps, start, end)
        axes.set_xlim(0, end - start)
        axes.set_xlabel("milliseconds")
        axes.set_ylim(len(_LANES) - 0.4, -0.6)
        axes.set_yticks(range(len(_LANES)), _LANES)
        axes.grid(visible=False, axis="y")
        handles = [
            Patch(fc=GREY, label="a step keeps its colour and number"),
            Patch(fc="white", ec=GREY, hatch="////", label="sampling"),
            Patch(fc=RED, label="the device idles"),
        ]
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)


def _draw(axes: Axes, s: Steps, start: float, end: float) -> None:
    lanes = (
        (s.planning, s.sent),
        (s.sent, s.arrived),
        (s.arrived, s.started),
        (s.started, s.launching),
        (s.launching, s.launched),
        (s.computing, s.sampled + s.copy),
        (s.done, s.answered),
        (s.answered, s.taken),
    )
    for lane, (begins, ends) in enumerate(lanes):
        shown = _within(begins, ends, start, end)
        colours = [_COLOURS[number % len(_COLOURS)] for number in shown]
        # Edges, since steps may be on a wire at a time.
        style = {"facecolors": colours, "edgecolors": "white", "linewidths": 0.5}
        _bars(axes, lane, begins[shown] - start, ends[shown] - start, **style)
        for number in shown:
            _label(axes, lane, begins[number] - start, ends[number] - start, number, end - start)
    style = {"facecolors": "none", "edgecolors": "white", "hatch": "////", "linewidths": 0}
    _bars(axes, _DEVICE, s.sampling - start, s.sampled - start, **style)
    _bars(axes, _DEVICE, s.computing - s.idle - start, s.computing - start, facecolors=RED)


def _bars(
    axes: Axes, lane: int, begins: NDArray[np.float64], ends: NDArray[np.float64], **style: Any
) -> None:
    spans = list(zip(begins, np.maximum(ends - begins, 0.0), strict=True))
    axes.broken_barh(spans, (lane - 0.35, 0.7), **style)


def _within(
    begins: NDArray[np.float64], ends: NDArray[np.float64], start: float, end: float
) -> NDArray[np.int64]:
    """Those of which something is seen."""
    return np.flatnonzero((ends > start) & (begins < end))


def _label(axes: Axes, lane: int, begin: float, end: float, number: int, width: float) -> None:
    """The step's number, where there is room."""
    low, high = max(begin, 0.0), min(end, width)
    if high - low > _LEAST_LABEL * width:
        axes.text(
            (low + high) / 2, lane, str(number), ha="center", va="center", fontsize=8,
            color="white",
        )  # fmt: skip
