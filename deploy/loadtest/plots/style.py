"""How all plots look. No global state of matplotlib is touched, and no display needed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter

# Okabe and Ito's colours, told apart with any colour vision; lines differ in dashes too.
BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
GREY = "#666666"
SERIES = ((BLUE, "-"), (RED, (0, (5, 2))))

_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "grid.color": "#e0e0e0",
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "lines.linewidth": 1.8,
    # Labels of minor ticks in one line with those of major ones, whose ticks are longer.
    "xtick.minor.pad": 5.0,
    "ytick.minor.pad": 5.0,
}
_DPI = 120
_HEADER_INCHES, _BANNER_INCHES = 0.85, 0.3
_SUBTITLE_WIDTH = 145


@contextmanager
def picture(
    path: Path,
    question: str,
    subtitle: str,
    void: str | None,
    rows: int,
    columns: int = 1,
    size: tuple[float, float] = (10, 6),
    share_x: bool = False,
) -> Iterator[list[Axes]]:
    """Axes to draw on, row by row; saves the picture afterwards. `question` is what the
    picture answers, `subtitle` of what, in one line or two. `void`: why the run does not
    count, written across it."""
    with matplotlib.rc_context(_STYLE):
        header = (_HEADER_INCHES + (_BANNER_INCHES if void else 0)) / size[1]
        layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - header))
        figure = Figure(figsize=size, layout=layout)
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False, sharex=share_x)
        yield list(axes.flat)
        _write_header(figure, question, subtitle, void)
        figure.savefig(path, dpi=_DPI)


def plain_log(axes: Axes, which: str) -> None:
    """A logarithmic axis "x" or "y" whose ticks read 50 and 2,000, not powers of ten."""
    low, high = getattr(axes.dataLim, f"interval{which}")
    if low == high and getattr(axes, f"get_autoscale{which}_on")():  # nothing to scale by
        getattr(axes, f"set_{which}lim")(low / 1.5, high * 1.5)
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    axis.set_major_formatter(FuncFormatter(_plain))
    low, high = getattr(axes, f"get_{which}lim")()
    # More labels would overlap.
    labelled = "123457" if high <= 10 * low else "25" if high <= 1000 * low else ""
    axis.set_minor_formatter(FuncFormatter(lambda value, _: _minor_label(value, labelled)))


def _minor_label(value: float, first_digits: str) -> str:
    """Of at most two digits."""
    digits = f"{value:.1e}"
    exact = digits[2] == "0" or first_digits != "25"
    return _plain(float(f"{value:.3g}")) if exact and digits[0] in first_digits else ""


def _plain(value: float, _: object = None) -> str:
    return f"{value:,.10g}"


def thousands(axes: Axes) -> None:
    """1,000 on the y axis."""
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))


def no_data(axes: Axes, reason: str) -> None:
    axes.text(0.5, 0.5, reason, ha="center", va="center", transform=axes.transAxes, color=GREY)
    axes.set_xticks([])
    axes.set_yticks([])


def _two_lines(text: str) -> str:
    """One line in two if need be; of several, the first two, cut."""
    several = text.splitlines()
    if len(several) > 1:
        cut = [textwrap.shorten(line, _SUBTITLE_WIDTH, placeholder=" …") for line in several]
    else:
        cut = textwrap.wrap(text, _SUBTITLE_WIDTH)
    return "\n".join(cut[:2])


def _write_header(figure: Figure, question: str, subtitle: str, void: str | None) -> None:
    height = figure.get_figheight()
    top = 1 - 0.12 / height
    figure.text(0.012, top, question, fontsize=15, weight="bold", va="top")
    figure.text(0.012, top - 0.33 / height, _two_lines(subtitle), fontsize=9, color=GREY, va="top")
    if void:
        figure.text(
            0.012, 1 - _HEADER_INCHES / height, f"VOID: {void}", fontsize=10.5, weight="bold",
            color="white", va="top", bbox={"facecolor": RED, "edgecolor": "none", "pad": 4},
        )  # fmt: skip
        figure.text(
            0.5, 0.42, "VOID", fontsize=150, weight="bold", color=RED, alpha=0.13,
            ha="center", va="center", rotation=25, zorder=10,
        )  # fmt: skip
