"""How much load does it hold: latency and what is served, against the offered load."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from deploy.loadtest.figures import Figures
from deploy.loadtest.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    no_data,
    picture,
    plain_log,
    thousands,
)
from deploy.loadtest.stage_text import stage_load
from deploy.loadtest.summary import Summary

_SPREAD = (
    ("p50", BLUE, "o", "-"),
    ("p90", ORANGE, "s", (0, (4, 1))),
    ("p99", RED, "^", (0, (1, 1))),
)


def plot_load(summary: Summary, subtitle: str, void: str | None, path: Path) -> None:
    """Of a ramp, whose stages `summary` has."""
    question = "How much load does it hold?"
    with picture(path, question, subtitle, void, 2, 2, (10.5, 7.5)) as panels:
        first_token, per_token, served, tokens = panels
        _draw_latency(first_token, summary, "first_token", "Time to first token")
        _draw_latency(per_token, summary, "per_token", "Time per output token")
        _draw_served(served, summary)
        _draw_tokens(tokens, summary)
        for axes in panels:
            if axes.lines:
                _mark_knee(axes, summary)


def _draw_latency(axes: Axes, summary: Summary, latency: str, title: str) -> None:
    axes.set_title(title)
    spreads = [(stage_load(s), getattr(f.latency_seconds, latency)) for s, f in summary.stages]
    spreads = [(load, spread) for load, spread in spreads if spread.n]
    if not spreads:
        no_data(axes, "no samples")
        return
    loads = [load for load, _ in spreads]
    for name, colour, marker, dashes in _SPREAD:
        values = [1000 * getattr(spread, name) for _, spread in spreads]
        axes.plot(loads, values, color=colour, marker=marker, linestyle=dashes, label=name)
    plain_log(axes, "y")
    axes.set_ylabel("milliseconds (logarithmic)")
    axes.legend(loc="upper left")


def _draw_served(axes: Axes, summary: Summary) -> None:
    loads = [stage_load(stage) for stage, _ in summary.stages]
    figures = [figures for _, figures in summary.stages]
    if all(stage.rate is not None for stage, _ in summary.stages):
        axes.plot([0, *loads], [0, *loads], color=GREY, linewidth=1, linestyle=":", label="offered")
    axes.plot(loads, [f.per_second.requests for f in figures], "o-", color=BLUE, label="ended well")
    if all(f.goodput for f in figures):
        good = [_good_per_second(f) for f in figures]
        axes.plot(loads, good, "s--", color=GREEN, label="within the limits (goodput)")
    axes.set_title("Requests served")
    axes.set_ylabel("requests/s")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")


def _good_per_second(figures: Figures) -> float:
    return figures.goodput.per_second if figures.goodput else 0.0


def _draw_tokens(axes: Axes, summary: Summary) -> None:
    loads = [stage_load(stage) for stage, _ in summary.stages]
    rates = [figures.per_second.output_tokens for _, figures in summary.stages]
    axes.plot(loads, rates, "o-", color=BLUE)
    axes.set_title("Output tokens served")
    axes.set_ylabel("tokens/s")
    axes.set_ylim(bottom=0)
    thousands(axes)


def _mark_knee(axes: Axes, summary: Summary) -> None:
    open_loop = summary.stages[0][0].rate is not None
    axes.set_xlabel("requests/s offered" if open_loop else "requests at a time")
    axes.set_xlim(left=0)
    if summary.knee is not None:
        axes.axvline(summary.knee, color=GREY, linestyle=(0, (6, 2)), linewidth=1)
        axes.annotate(
            f"knee {summary.knee:.3g}/s", (summary.knee, 0), (4, 4), textcoords="offset points",
            xycoords=axes.get_xaxis_transform(), fontsize=9, color=GREY,
        )  # fmt: skip
