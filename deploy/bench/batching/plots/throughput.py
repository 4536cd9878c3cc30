"""How much do more rows buy?"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from deploy.bench.batching.throughput import HALF, Curve
from deploy.loadtest.plots.style import BLUE, GREEN, GREY, ORANGE, RED, picture, plain_log

_END = (
    "Beyond {} rows the next size adds less than a tenth.",
    "Every size up to {} adds at least a tenth.",
)


def plot_throughput(curve: Curve, subtitle: str, path: Path) -> None:
    gain = curve.speed_up[curve.batches.index(curve.knee)]
    question = f"Batching pays: {curve.knee} rows make {gain:.3g} times the tokens of one"
    subtitle = f"{subtitle}\nLines: medians over rounds; band: their range. " + _END[
        curve.last_gain == curve.batches[-1]
    ].format(curve.last_gain)
    with picture(path, question, subtitle, None, 1, 2, size=(10.5, 4.9)) as (left, right):
        _draw_rates(left, curve)
        _draw_efficiency(right, curve)


def _draw_rates(axes: Axes, curve: Curve) -> None:
    ideal = [batch * curve.decode[0] for batch in curve.batches]
    axes.plot(curve.batches, ideal, color=GREY, linestyle=(0, (5, 3)), label="ideal: rows are free")
    axes.plot(curve.batches, curve.decode, color=BLUE, marker="o", label="decoding")
    axes.fill_between(curve.batches, curve.lowest, curve.highest, color=BLUE, alpha=0.2, lw=0)
    axes.plot(
        curve.batches, curve.overall, color=ORANGE, marker="s", linestyle=(0, (2, 1)),
        label="prompts included",
    )  # fmt: skip
    for batch, rate, gain in zip(curve.batches, curve.decode, curve.speed_up, strict=True):
        axes.annotate(
            f"{gain:.3g}x", (batch, rate), (0, 8), textcoords="offset points", ha="right",
            fontsize=9, color=BLUE,
        )  # fmt: skip
    axes.set_title("Output tokens per second")
    plain_log(axes, "y")
    _batch_axis(axes, curve)
    axes.legend(loc="lower right")


def _draw_efficiency(axes: Axes, curve: Curve) -> None:
    axes.plot(curve.batches, curve.efficiency, color=GREEN, marker="o")
    axes.axhline(HALF, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
    axes.axvline(curve.knee, color=RED, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.annotate(
        f"knee: {curve.knee}", (curve.knee, 0.04), (-6, 0), textcoords="offset points",
        ha="right", color=RED,
    )  # fmt: skip
    for batch, share in zip(curve.batches, curve.efficiency, strict=True):
        label = f"{share:.0%}"
        axes.annotate(label, (batch, share), (5, 6), textcoords="offset points", fontsize=9)
    axes.set_title("Efficiency: share of the ideal")
    axes.set_ylim(0, 1.15)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _batch_axis(axes, curve)


def _batch_axis(axes: Axes, curve: Curve) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(curve.batches)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(batch) for batch in curve.batches])
    axes.set_xlabel("batch size (requests decoding together)")
