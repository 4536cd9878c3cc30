"""How long did requests take: the cumulative share of each latency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from deploy.loadtest.goodput import Limits
from deploy.loadtest.latencies import latency_samples
from deploy.loadtest.numbers import milliseconds
from deploy.loadtest.plots.style import GREY, SERIES, no_data, picture, plain_log
from deploy.loadtest.requests import Requests
from deploy.loadtest.timeline import Run

# Name, title, unit of the share, and the limit that concerns it.
_PANELS = (
    ("first_token", "Time to first token", "requests", "ttft"),
    ("per_token", "Time per output token", "requests", "tpot"),
    ("gap", "Gap before a token", "tokens", "gap"),
    ("end_to_end", "End to end", "requests", "e2e"),
)
_LEAST = 1e-3  # ms: a logarithmic axis has no 0, where messages come at the same time
_MARKS = (50, 90, 99)
# Enough for a smooth line and an exact tail, however many samples there are.
_SHARES = np.concatenate([np.linspace(0, 99, 500), np.linspace(99, 100, 300)[1:]])


def plot_latencies(
    runs: Sequence[tuple[str, Run]], limits: Limits, subtitle: str, void: str | None, path: Path
) -> None:
    """Of one run with its percentiles, or of two, named, over each other."""
    samples = [(name, latency_samples(Requests.of(run).counted)) for name, run in runs]
    question = "How long did requests take?"
    with picture(path, question, subtitle, void, 2, 2, (10.5, 7.5)) as panels:
        for axes, (latency, title, unit, limit) in zip(panels, _PANELS, strict=True):
            axes.set_title(title)
            curves = [(name, values[latency]) for name, values in samples]
            _draw(axes, curves, unit, getattr(limits, limit))


def _draw(
    axes: Axes,
    curves: Sequence[tuple[str, NDArray[np.float64]]],
    unit: str,
    limit: float | None,
) -> None:
    styled = [(*curve, *style) for curve, style in zip(curves, SERIES, strict=False)]
    drawn = sorted((s for s in styled if s[1].size), key=lambda s: float(np.median(s[1])))
    if not drawn:
        no_data(axes, "no samples")
        return
    for order, (name, values, colour, dashes) in enumerate(drawn):
        at = np.maximum(1000 * np.percentile(values, _SHARES), _LEAST)
        label = f"{name}n = {values.size:,}"
        axes.plot(at, _SHARES, color=colour, linestyle=dashes, label=label)
        _mark(axes, values, colour, at_left=len(drawn) > 1 and order == 0)
    if limit is not None:
        axes.axvline(limit, color=GREY, linestyle=":", label=f"limit {limit:g} ms")
    # Without the very quickest, which would take up decades; with room for the labels.
    low = min(float(np.percentile(values, 1)) for _, values, *_ in drawn)
    high = max(float(values.max()) for _, values, *_ in drawn)
    axes.set_xlim(max(1000 * low, _LEAST) / 1.6, max(1000 * high, limit or 0, _LEAST) * 1.6)
    plain_log(axes, "x")
    axes.set_xlabel("milliseconds (logarithmic)")
    axes.set_ylabel(f"{unit} at most so long (%)")
    axes.set_ylim(0, 104)
    axes.set_yticks([0, 25, 50, 75, 90, 99])
    handles, labels = axes.get_legend_handles_labels()
    by_name = sorted(
        zip(labels, handles, strict=True), key=lambda pair: (pair[0].startswith("limit"), pair[0])
    )
    axes.legend(
        [handle for _, handle in by_name], [label for label, _ in by_name],
        loc="lower right", fontsize=9,
    )  # fmt: skip


def _mark(axes: Axes, values: NDArray[np.float64], colour: str, at_left: bool) -> None:
    """A dot at each percentile with its figure, to the right of the line or to the left."""
    for share, value in zip(_MARKS, np.percentile(values, _MARKS), strict=True):
        at = max(1000 * value, _LEAST)
        axes.plot(at, share, "o", color=colour, markersize=5)
        axes.annotate(
            f"p{share} {milliseconds(value)}",
            (at, share),
            (-8, 0) if at_left else (8, -4),
            textcoords="offset points",
            ha="right" if at_left else "left",
            va="center" if at_left else "top",
            fontsize=9,
            color=colour,
        )
