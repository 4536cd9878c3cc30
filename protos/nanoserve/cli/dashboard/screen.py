"""The whole picture, as lines of text for a terminal of a given size."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from nanoserve.cli.dashboard.glyphs import Glyphs
from nanoserve.cli.dashboard.history import History
from nanoserve.cli.dashboard.pool_map import pool_map
from nanoserve.cli.dashboard.row_table import bar, row_table
from nanoserve.cli.figures import duration, latency, rate, share
from nanoserve.cli.terminal import harmless
from nanoserve.latency import LatencyHistogram
from nanoserve.status import ServerStatus

SHORTEST_MAP = 2
# Where there is no end to the paper: a map is as high as that at most.
HIGHEST_PRINTED_MAP = 16
LABEL_WIDTH = 13
RATE_WIDTH = 20
PEAK_WIDTH = 16
POOL_BAR = 10
# With so many lines parts are set apart.
AIRY_HEIGHT = 32
TROUBLE_LINES = 3
PERCENTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class View:
    """What there is to see. `trouble` is empty while statuses come; `hint` is for the corner."""

    address: str
    history: History
    glyphs: Glyphs
    trouble: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    """Of the terminal, in characters. `height` None: as high as it takes."""

    width: int
    height: int | None


def picture(view: View, size: Size) -> list[Text]:
    """At most `size.height` lines of at most `size.width` characters."""
    status, glyphs = view.history.status, view.glyphs
    if status is None:
        return [_cut(Text(view.trouble or f"waiting for {view.address}"), size, glyphs)]
    lines = [_header(view, status, size, glyphs)]
    trouble = view.trouble or status.reason or status.missing_reason
    lines += _wrapped(trouble, size.width)
    lines += _rate_lines(view.history, size, glyphs)
    lines += _latency_lines(view.history)
    lines.append(_request_line(view.history, status, glyphs))
    room = None if size.height is None else size.height - len(lines)
    lines += _pool_and_rows(view, status, room, size)
    return [_cut(line, size, glyphs) for line in lines[: size.height]]


def _header(view: View, status: ServerStatus, size: Size, glyphs: Glyphs) -> Text:
    """Who and where on the left, and on the right whether it is ready."""
    state, colour = ("ready", "green") if status.ready else ("not ready", "red")
    if view.trouble:
        state, colour = "away", "red"
    up = f"up {duration(status.uptime_seconds)}"
    parts = [view.address, status.model, status.worker_device, up]
    left = Text("nanoserve", style="bold", no_wrap=True)
    left.append("  " + f" {glyphs.dot} ".join(harmless(part) for part in parts if part), "not bold")
    room = size.width - len(state) - 3
    left.truncate(room, overflow="crop")
    left.append(" " * (room - left.cell_len + 1))
    left.append(f" {state} ", f"bold reverse {colour}")
    return left


def _rate_lines(history: History, size: Size, glyphs: Glyphs) -> list[Text]:
    lines = []
    for name, rates, colour in (
        ("output", history.output_rates, "green"),
        ("prompt", history.prompt_rates, "cyan"),
    ):
        label = f"{rate(rates[-1] if rates else None)} tokens/s"
        peak = f"peak {rate(max(rates, default=None))}".rjust(PEAK_WIDTH)
        width = max(0, size.width - LABEL_WIDTH - RATE_WIDTH - PEAK_WIDTH)
        shown = list(rates)[-width:] if width else []
        for number, drawn in enumerate(curve(shown, width, _curve_height(size), glyphs)):
            line = _labelled(name if number == 0 else "")
            line.append(f"{label if number == 0 else '':<{RATE_WIDTH}}", "bold")
            line.append(drawn, colour)
            line.append(peak if number == 0 else "", "bright_black")
            lines.append(line)
    return lines


def _curve_height(size: Size) -> int:
    return 3 if size.height is not None and _gap(size) else 1


def curve(values: Sequence[float], width: int, height: int, glyphs: Glyphs) -> list[str]:
    """`values` as a curve of `height` lines that ends at the right; its highest level is their
    largest. Nothing is a blank, and anything at all is a level."""
    top, levels = max(values, default=0.0), glyphs.levels
    steps = height * len(levels)
    heights = [max(1, round(value / top * steps)) if value > 0 else 0 for value in values]
    lines = []
    for floor in range((height - 1) * len(levels), -1, -len(levels)):
        filled = [min(len(levels), max(0, of - floor)) for of in heights]
        drawn = "".join(levels[count - 1] if count else " " for count in filled)
        lines.append(drawn.rjust(width))
    return lines


def _latency_lines(history: History) -> list[Text]:
    seconds = history.window_seconds
    over = f"last {seconds:.0f} s" if seconds else "since the start"
    return [
        _latency_line("first token", history.first_token, over),
        _latency_line("inter-token", history.inter_token, over),
    ]


def _latency_line(name: str, of: LatencyHistogram | None, over: str) -> Text:
    line = _labelled(name)
    for part in PERCENTILES:
        line.append(f"p{100 * part:.0f} ")
        line.append(f"{latency(of.percentile(part) if of else None):<8}", "bold")
    line.append("mean ")
    line.append(f"{latency(of.mean if of else None):<8}", "bold")
    line.append(f" {over}", "bright_black")
    return line


def _request_line(history: History, status: ServerStatus, glyphs: Glyphs) -> Text:
    line = _labelled("requests")
    line.append(f"{status.running_requests:,}", "bold")
    most = f" of {status.max_rows:,}" if status.max_rows else ""
    line.append(f"{most} running {glyphs.dot} ")
    waiting = status.waiting_requests
    line.append(f"{waiting:,}", "bold yellow" if waiting else "bold")
    line.append(f" waiting {glyphs.dot} {rate(history.step_rate)} steps/s ")
    line.append(f"{glyphs.dot} {status.preemptions:,} preempted")
    if status.worker_restarts:
        line.append(f" {glyphs.dot} {status.worker_restarts:,} worker restarts", "yellow")
    return line


def _pool_and_rows(view: View, status: ServerStatus, room: int | None, size: Size) -> list[Text]:
    """Both get what they need if there is room for both; else the map at least half."""
    glyphs, gap = view.glyphs, _gap(size)
    needed = len(status.rows) + 1
    if not status.block_owners:
        return [*gap, *row_table(status.rows, size.width, room or needed, glyphs)]
    map_lines = -(-len(status.block_owners) // size.width)
    if room is None:
        map_lines = min(map_lines, HIGHEST_PRINTED_MAP)
    else:
        free = room - 2 - 2 * len(gap)  # less the map's heading and legend
        map_lines = max(SHORTEST_MAP, min(map_lines, max(free // 2, free - needed)))
    drawn = pool_map(status.block_owners, size.width, map_lines, glyphs)
    lines = [*gap, _pool_line(status, glyphs), *drawn.lines]
    lines += [_legend(view, drawn.blocks_per_cell, size.width), *gap]
    row_room = needed if room is None else room - len(lines)
    return lines + row_table(status.rows, size.width, row_room, glyphs)


def _gap(size: Size) -> list[Text]:
    """Between parts, where lines are not precious."""
    return [Text()] if size.height is None or size.height >= AIRY_HEIGHT else []


def _pool_line(status: ServerStatus, glyphs: Glyphs) -> Text:
    usable, held = status.usable_blocks, status.usable_blocks - status.free_blocks
    line = _labelled("K/V pool")
    line.append(bar(held / usable if usable else 0.0, POOL_BAR, glyphs, "bold"))
    line.append(f" {share(held, usable)}", "bold")
    line.append(f" held {glyphs.dot} {status.free_blocks:,} of {usable:,} blocks free ")
    line.append(f"{glyphs.dot} {status.block_size} tokens each")
    return line


def _legend(view: View, blocks_per_cell: int, width: int) -> Text:
    glyphs = view.glyphs
    text = f"{glyphs.scratch} scratch  {glyphs.free} free  {glyphs.cached} cached  A-Z a row's"
    if blocks_per_cell > 1:
        text += f"  {blocks_per_cell:,} a cell, a-z under half"
    line = Text(text, style="bright_black", no_wrap=True)
    line.append(view.hint.rjust(max(0, width - len(text))))
    return line


def _wrapped(trouble: str, width: int) -> list[Text]:
    lines = textwrap.wrap(harmless(trouble), width, max_lines=TROUBLE_LINES)
    return [Text(line, style="bold red") for line in lines]


def _labelled(name: str) -> Text:
    return Text(f"{name:<{LABEL_WIDTH}}", style="", no_wrap=True)


def _cut(line: Text, size: Size, glyphs: Glyphs) -> Text:
    if line.cell_len > size.width:
        line.truncate(size.width - 1)
        line.append(glyphs.ellipsis)
    line.no_wrap, line.end = True, "\n"
    return line
