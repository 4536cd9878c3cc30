"""A panel as a picture: its lines over time, with unit and legend."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

from deploy.loadtest.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    no_data,
    thousands,
)
from deploy.observe.dashboard import Panel
from deploy.observe.range_query import Series, Span
from deploy.observe.units import scale

_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, GREY)
_DASHES = ("-", (0, (5, 2)), (0, (1, 1)), (0, (5, 1, 1, 1)))


@dataclass(frozen=True, slots=True)
class Answers:
    """A panel with what its queries were answered: the series of each query, in their order."""

    panel: Panel
    series: tuple[tuple[Series, ...], ...]

    @property
    def lacking(self) -> list[str]:
        """Legends of the queries without a value."""
        pairs = zip(self.panel.queries, self.series, strict=True)
        return [query.legend for query, found in pairs if not any(one.has_data for one in found)]

    @property
    def lines(self) -> list[tuple[str, np.ndarray]]:
        """Name and values [points] of all that have data."""
        pairs = zip(self.panel.queries, self.series, strict=True)
        return [
            (query.name(one.labels), one.values)
            for query, found in pairs
            for one in found
            if one.has_data
        ]


def draw(axes: Axes, answers: Answers, span: Span) -> None:
    axes.set_title(answers.panel.title)
    lines = answers.lines
    if not lines:
        no_data(axes, "no data")
        return
    highest = max(np.nanmax(values) for _, values in lines)
    size, unit = scale(answers.panel.unit, highest)
    times = [datetime.fromtimestamp(time, UTC) for time in span.times]
    for number, (name, values) in enumerate(lines):
        axes.plot(
            times, values / size, label=name, color=_COLOURS[number % len(_COLOURS)],
            linestyle=_DASHES[number % len(_DASHES)], clip_on=False,
        )  # fmt: skip
    locator = AutoDateLocator(minticks=3, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))
    axes.set_xlim(times[0], times[-1])
    axes.set_ylim(0, 1.08 * highest / size or 1)
    axes.set_ylabel(unit or answers.panel.axis)
    thousands(axes)
    axes.legend(
        loc="upper left", bbox_to_anchor=(0, -0.09), ncols=5, frameon=False, fontsize=9,
        borderaxespad=0.3, columnspacing=1.4,
    )  # fmt: skip
