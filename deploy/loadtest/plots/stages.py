"""The measuring window on a time axis."""

from __future__ import annotations

from matplotlib.axes import Axes

from deploy.loadtest.plots.style import GREY
from deploy.loadtest.stage_text import stage_name
from deploy.loadtest.timeline import Run


def title_pad(run: Run) -> float:
    """Points between an axes' title and the axes, with room for the stages' names."""
    return 18.0 if len(run.stages) > 1 else 6.0


def mark_stages(axes: Axes, run: Run, names: bool) -> None:
    """Shades what is outside of the measuring window, and draws the borders of a ramp's
    stages, with their loads above if `names`. Fixes the axis to the run's length."""
    ends = [t.ended for t in run.timelines] + [s.t for s in run.samples]
    last = max([run.stages[-1].end, *ends])
    axes.set_xlim(0, last)
    border = 0.0
    for stage in run.stages:
        axes.axvspan(border, stage.start, color=GREY, alpha=0.12, linewidth=0)
        border = stage.end
    axes.axvspan(border, last, color=GREY, alpha=0.12, linewidth=0)
    if len(run.stages) > 1:
        for stage in run.stages:
            axes.axvline(stage.start, color=GREY, linewidth=0.8)
            if names:
                middle = (stage.start + stage.end) / 2
                axes.text(
                    middle, 1.01, stage_name(stage), transform=axes.get_xaxis_transform(),
                    ha="center", va="bottom", fontsize=9, color=GREY,
                )  # fmt: skip
