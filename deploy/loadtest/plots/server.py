"""What did the server do: requests running and waiting, and the pool, over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from deploy.loadtest.plots.stages import mark_stages, title_pad
from deploy.loadtest.plots.style import BLUE, GREEN, ORANGE, picture
from deploy.loadtest.server_load import pool_used
from deploy.loadtest.timeline import Run


def plot_server(run: Run, subtitle: str, void: str | None, path: Path) -> None:
    """From the samples of the server's status, of which there must be some."""
    times = np.array([sample.t for sample in run.samples])
    question = "How loaded was the server?"
    with picture(path, question, subtitle, void, 2, size=(10.5, 7), share_x=True) as (top, bottom):
        _draw_requests(top, run, times)
        used = [100 * pool_used(s.free_blocks, s.usable_blocks) for s in run.samples]
        bottom.fill_between(times, used, step="post", color=GREEN, alpha=0.2, linewidth=0)
        bottom.step(times, used, where="post", color=GREEN)
        bottom.set_title("K/V pool")
        bottom.set_ylabel("blocks held by requests (%)")
        bottom.set_ylim(0, 104)
        bottom.set_xlabel("seconds since the run's start (shaded: not measured)")
        mark_stages(top, run, names=True)
        mark_stages(bottom, run, names=False)


def _draw_requests(axes: Axes, run: Run, times: np.ndarray) -> None:
    running = [sample.running for sample in run.samples]
    waiting = [sample.waiting for sample in run.samples]
    axes.fill_between(times, running, step="post", color=BLUE, alpha=0.15, linewidth=0)
    axes.step(times, running, where="post", color=BLUE, label="running")
    axes.step(times, waiting, where="post", color=ORANGE, linestyle=(0, (4, 1)), label="waiting")
    axes.set_title("Requests", pad=title_pad(run))
    axes.set_ylabel("requests")
    axes.set_ylim(0, 1.08 * max(1, *running, *waiting))
    axes.legend(loc="upper left", ncols=2)
