"""Did it stay the same over the run: first tokens and throughput against time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from deploy.loadtest.measures import Outcome
from deploy.loadtest.plots.stages import mark_stages, title_pad
from deploy.loadtest.plots.style import BLUE, GREEN, GREY, RED, picture, plain_log, thousands
from deploy.loadtest.requests import Request, Requests
from deploy.loadtest.timeline import Run

_BINS = 60
_LEAST = 1e-6  # seconds: a logarithmic axis has no 0


def plot_over_time(run: Run, subtitle: str, void: str | None, path: Path) -> None:
    requests = Requests.of(run)
    question = "Did it stay the same over the run?"
    with picture(path, question, subtitle, void, 2, size=(10.5, 7), share_x=True) as (top, bottom):
        _draw_first_tokens(top, requests.traffic, run)
        _draw_throughput(bottom, requests.traffic, run)
        bottom.set_xlabel("seconds since the run's start (shaded: not measured)")
        mark_stages(top, run, names=True)
        mark_stages(bottom, run, names=False)


def _draw_first_tokens(axes: Axes, requests: tuple[Request, ...], run: Run) -> None:
    """A dot for each request, at its planned time; those without a token in a strip at
    the lower edge, by outcome."""
    with_token = [r for r in requests if r.measures.first_token is not None and r.judged]
    planned = [r.timeline.planned for r in with_token]
    waits = [1000 * max(r.measures.first_token or 0.0, _LEAST) for r in with_token]
    axes.plot(planned, waits, ".", color=BLUE, markersize=4, alpha=0.6, label="first token")
    strips = ((Outcome.FAILED, "x", RED, 0.03), (Outcome.UNFINISHED, "|", GREY, 0.07))
    for outcome, marker, colour, height in strips:
        times = [
            r.timeline.planned
            for r in requests
            if r.measures.outcome is outcome and r.measures.first_token is None
        ]
        if times:
            axes.plot(
                times, np.full(len(times), height), marker, color=colour, markersize=6,
                linestyle="none", transform=axes.get_xaxis_transform(),
                label=f"{outcome.value} without a token: {len(times):,}",
            )  # fmt: skip
    if waits:
        plain_log(axes, "y")
        # Room for the strips below the quickest.
        low, high = min(waits), max(waits)
        axes.set_ylim(low / (high / low * 1.5) ** 0.2 / 1.1, high * 1.5)
    axes.set_title("Time to first token, a dot for each request", pad=title_pad(run))
    axes.set_ylabel("milliseconds (logarithmic)")
    axes.legend(loc="upper left", ncols=3, fontsize=9)


def _draw_throughput(axes: Axes, requests: tuple[Request, ...], run: Run) -> None:
    last = max(run.stages[-1].end, *(r.timeline.ended for r in requests), _LEAST)
    edges = np.linspace(0, last, _BINS + 1)
    times = np.concatenate([np.zeros(0), *(r.timeline.times for r in requests)])
    counts = np.concatenate([np.zeros(0), *(r.timeline.token_counts for r in requests)])
    tokens, _ = np.histogram(times, edges, weights=counts)
    width = last / _BINS
    axes.stairs(tokens / width, edges, color=GREEN, fill=True, alpha=0.35)
    axes.stairs(tokens / width, edges, color=GREEN, linewidth=1.5)
    axes.set_title(f"Output tokens per second, mean over {width:.2g} s")
    axes.set_ylabel("tokens/s")
    axes.set_ylim(bottom=0)
    thousands(axes)
