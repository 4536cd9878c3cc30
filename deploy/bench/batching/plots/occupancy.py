"""Who holds the pool, over time?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from deploy.bench.batching.plots.colours import HATCH, row_colour
from deploy.bench.batching.policies import Bill
from deploy.loadtest.plots.style import BLUE, GREY, RED, picture


def plot_occupancy(static: Bill, continuous: Sequence[Bill], subtitle: str, path: Path) -> None:
    """One load on pools of several sizes; `static` and the first of `continuous` had the
    largest. There are at most four of the latter."""
    bills = [static, *continuous]
    question = "Static batching reserves; continuous batching takes blocks as tokens come"
    with picture(path, question, subtitle, None, 3, 2, size=(11, 9.5)) as axes:
        longest = max(bill.seconds for bill in bills)
        for panel, bill in zip(axes, bills, strict=False):
            _draw_pool(panel, bill)
            panel.set_xlim(0, 1.02 * longest)
        for panel in axes[len(bills) : -1]:
            panel.set_axis_off()
        _draw_rates(axes[-1], static, continuous)
        _draw_legend(axes[0], static.recording.max_rows)


def _draw_pool(axes: Axes, bill: Bill) -> None:
    seen = bill.occupancy
    edges = np.append(seen.starts[0], seen.ends)
    base = np.zeros(len(seen.ends))
    for row in range(seen.blocks.shape[1]):
        top = base + seen.written[:, row]
        axes.stairs(top, edges, baseline=base, fill=True, color=row_colour(row), linewidth=0)
        base = top
    total = seen.blocks.sum(axis=1)
    axes.stairs(
        total, edges, baseline=base, fill=True, facecolor="white", edgecolor=GREY, hatch=HATCH,
        linewidth=0,
    )  # fmt: skip
    axes.axhline(seen.usable, color=RED, linewidth=1.4)
    axes.set_ylim(0, 1.08 * seen.usable)
    held = np.average(total, weights=seen.ends - seen.starts)
    axes.set_title(
        f"{bill.policy.value.capitalize()}, {bill.pool} blocks: {bill.seconds:.1f} s, "
        f"{held / bill.pool:.0%} held, {bill.preemptions} preempted",
        fontsize=10,
    )
    axes.set_ylabel("blocks")
    axes.set_xlabel("seconds")


def _draw_legend(axes: Axes, rows: int) -> None:
    handles = [Patch(color=row_colour(row), label=f"row {row}") for row in range(rows)]
    handles.append(Patch(facecolor="white", edgecolor=GREY, hatch=HATCH, label="reserved"))
    handles.append(axes.plot([], [], color=RED, label="pool")[0])
    axes.legend(handles=handles, loc="upper right", bbox_to_anchor=(1, 0.92), fontsize=8, ncols=5)


def _draw_rates(axes: Axes, static: Bill, continuous: Sequence[Bill]) -> None:
    bills = [*reversed(continuous), static]
    rates = [bill.useful / bill.seconds for bill in bills]
    names = [f"{bill.policy.value}\n{bill.pool} blocks" for bill in bills]
    bars = axes.bar(names, rates, color=[*[BLUE] * len(continuous), GREY], width=0.6)
    labels = [
        f"{rate:.0f}\n{bill.recomputed} recomputed"
        if bill.recomputed
        else f"{rate:.0f}\n{bill.wasted:.0%} wasted"
        for rate, bill in zip(rates, bills, strict=True)
    ]
    axes.bar_label(bars, labels, fontsize=8.5, padding=2)
    axes.set_ylim(0, 1.3 * max(rates))
    axes.set_title("Useful tokens per second", fontsize=10)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.grid(axis="x", visible=False)
