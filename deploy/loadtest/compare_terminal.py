"""A comparison for the terminal: whole in 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from deploy.loadtest.compare import Comparison, Line
from deploy.loadtest.notes import STAGES_ARE_MIXED
from deploy.loadtest.numbers import NONE, milliseconds, number, percent
from deploy.loadtest.settings_text import describe
from deploy.loadtest.terminal import hanging, lines, table, void_panel

_LATENCY_TITLE = "Latency, ms; less is better"


def print_comparison(comparison: Comparison, names: tuple[str, str], console: Console) -> None:
    """`names` are the files that the runs came from."""
    console.print(Group(*_sections(comparison, names)))


def _sections(comparison: Comparison, names: tuple[str, str]) -> Iterator[RenderableType]:
    runs = (comparison.a, comparison.b)
    yield Text("Two load tests", "bold")
    yield lines(
        (letter, f"{name}, {run.started_at}")
        for letter, name, run in zip("AB", names, runs, strict=True)
    )
    for letter, run in zip("AB", runs, strict=True):
        if run.void:
            yield void_panel(f"{letter}: {run.lag.void_reason}")
    yield from _settings(comparison)
    yield Text()
    yield _figures(_LATENCY_TITLE, comparison.latencies)
    yield _figures("Served; more is better", comparison.served)
    yield _figures("Lost requests; less is better", comparison.lost)
    if comparison.a.stages or comparison.b.stages:
        yield hanging("-", STAGES_ARE_MIXED)
    yield hanging("-", "A run for each is no proof: repeat both, in turn, before a close call.")


def _settings(comparison: Comparison) -> Iterator[RenderableType]:
    different = comparison.different_settings
    if not different:
        yield Text("Their settings are the same.")
        return
    yield Text("Warning: their settings differ", "bold yellow")
    yield lines((name, f"{_setting(a)}  ->  {_setting(b)}") for name, (a, b) in different.items())


def _setting(value: object) -> str:
    return "none" if value is None else describe(value)


def _figures(title: str, figures: Sequence[Line]) -> RenderableType:
    made = table(title, "", "A", "B", "B / A")
    for line in figures:
        ratio = NONE if line.ratio is None else f"{line.ratio:.3f}"
        made.add_row(line.title, _value(line, line.a), _value(line, line.b), ratio)
    return made


def _value(line: Line, value: float | None) -> str:
    if line.unit == "s":
        return milliseconds(value)
    if line.unit == "share":
        return percent(value)
    return f"{value:,}" if line.unit in ("requests", "samples") else number(value)
