"""What do short requests pay for a long one beside them?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from deploy.bench.batching.loads import LONG, SHORT
from deploy.bench.batching.plots.colours import HATCH
from deploy.bench.batching.policies import Bill, Policy, Served
from deploy.loadtest.plots.style import BLUE, GREEN, GREY, ORANGE, RED, picture, plain_log

_LINES = {
    Policy.CONTINUOUS: (GREEN, "-"),
    Policy.STATIC: (BLUE, (0, (5, 2))),
    Policy.STATIC_TOGETHER: (RED, (0, (2, 1))),
}
_USEFUL, _LONGER = BLUE, ORANGE


def plot_short_rows(
    seven: Sequence[Bill], arriving: Sequence[Bill], subtitle: str, path: Path
) -> None:
    """`seven`: one bill for each policy of the seven behind one; `arriving`: of the mix."""
    question = "What do short requests pay for a long one beside them?"
    with picture(path, question, subtitle, None, 2, 2, size=(11, 8)) as axes:
        longest = max(bill.seconds for bill in seven)
        for panel, bill in zip(axes, seven, strict=False):
            _draw_rows(panel, bill)
            panel.set_xlim(-0.02 * longest, 1.04 * longest)
        _draw_legend(axes[0])
        _draw_latencies(axes[3], arriving)


def _draw_rows(axes: Axes, bill: Bill) -> None:
    shift = _shift(bill.requests)
    for line, served in enumerate(bill.requests):
        colour = _LONGER if served.asked.group == LONG else _USEFUL
        axes.plot([0, served.latency], [line, line], color=GREY, linewidth=1, zorder=1)
        for start, end, useful in _joined(served.work.spans):
            style = {"color": colour} if useful else {"facecolor": "white", "hatch": HATCH}
            axes.barh(
                line, end - start, left=start + shift - served.timeline.planned, height=0.7,
                edgecolor=colour, linewidth=0.8, zorder=2, **style,
            )  # fmt: skip
        axes.plot(served.latency, line, marker="o", color="black", markersize=6, zorder=3)
    short = np.median(bill.over_own_work(SHORT))
    axes.set_title(
        f"{bill.policy.value.capitalize()}: {bill.wasted:.0%} of the tokens wasted;\nshort ones "
        f"take {np.median(bill.latencies(SHORT)):.2f} s, {short:.1f} x their own steps",
        fontsize=10.5,
    )
    axes.set_yticks(range(len(bill.requests)))
    axes.set_yticklabels([f"{s.work.useful} tokens" for s in bill.requests])
    axes.set_ylim(len(bill.requests) + 1.7, -0.7)  # room for the legend
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds since they were sent")


def _draw_legend(axes: Axes) -> None:
    handles = [
        Patch(color=_LONGER, label="steps that made the long one's tokens"),
        Patch(color=_USEFUL, label="steps that made a short one's"),
        Patch(facecolor="white", edgecolor=_USEFUL, hatch=HATCH, label="steps for nobody"),
        axes.plot([], [], "o", color="black", markersize=6, label="the client has its end")[0],
    ]
    axes.legend(handles=handles, loc="lower center", fontsize=8.5, ncols=2)


def _draw_latencies(axes: Axes, bills: Sequence[Bill]) -> None:
    for bill in bills:
        latencies = np.sort(bill.latencies(SHORT))
        colour, dashes = _LINES[bill.policy]
        share = 100 * np.arange(1, len(latencies) + 1) / len(latencies)
        label = f"{np.median(latencies):.2g} s, {bill.policy.value}"
        axes.step(latencies, share, where="post", color=colour, linestyle=dashes, label=label)
    rate = (len(bills[0].requests) - 1) / bills[0].requests[-1].asked.time
    axes.set_title(
        f"Short requests of a mix, {rate:.2f} arrivals a second:\nshare that ended within …",
        fontsize=10.5,
    )
    plain_log(axes, "x")
    axes.set_xlim(right=axes.get_xlim()[1] * 10)  # for the legend
    axes.set_xlabel("seconds since arrival")
    axes.set_ylabel("% of short requests")
    axes.set_ylim(0, 103)
    axes.legend(loc="lower right", fontsize=9, title="median", alignment="left")


def _shift(requests: Sequence[Served]) -> float:
    """From the scheduler's clock to the load tool's: the quickest first token took no time."""
    return float(
        min(s.timeline.times[0] - min(end for _, end, _ in s.work.spans) for s in requests)
    )


def _joined(spans: Sequence[tuple[float, float, bool]]) -> list[tuple[float, float, bool]]:
    joined: list[tuple[float, float, bool]] = []
    for start, end, useful in spans:
        if joined and joined[-1][2] is useful:
            joined[-1] = (joined[-1][0], end, useful)
        else:
            joined.append((start, end, useful))
    return joined
