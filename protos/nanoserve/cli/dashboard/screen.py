"""The whole picture, as lines of text for a terminal of a given size."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from rich.text import Text

from nanoserve.cli.dashboard.glyphs import Glyphs
from nanoserve.cli.dashboard.history import History
from nanoserve.cli.dashboard.load_lines import (
    labelled,
    latency_lines,
    prefix_line,
    rate_lines,
    request_line,
)
from nanoserve.cli.dashboard.pool_map import pool_map
from nanoserve.cli.dashboard.row_table import bar, row_table
from nanoserve.cli.dashboard.size import Size
from nanoserve.cli.figures import duration, share
from nanoserve.cli.terminal import harmless
from nanoserve.status import ServerStatus

SHORTEST_MAP = 2
# Where there is no end to the paper: a map is as high as that at most.
HIGHEST_PRINTED_MAP = 16
POOL_BAR = 10
TROUBLE_LINES = 3


@dataclass(frozen=True, slots=True)
class View:
    """What there is to see. `trouble` is empty while statuses come; `hint` is for the corner."""

    address: str
    history: History
    glyphs: Glyphs
    trouble: str = ""
    hint: str = ""


def picture(view: View, size: Size) -> list[Text]:
    """At most `size.height` lines of at most `size.width` characters."""
    status, glyphs = view.history.status, view.glyphs
    if status is None:
        return [_cut(Text(view.trouble or f"waiting for {view.address}"), size, glyphs)]
    lines = [_header(view, status, size, glyphs)]
    trouble = view.trouble or status.reason or status.missing_reason
    lines += _wrapped(trouble, size.width)
    lines += rate_lines(view.history, size, glyphs)
    lines += latency_lines(view.history)
    lines.append(request_line(view.history, status, glyphs))
    if status.prefix_queries:
        lines.append(prefix_line(view.history, status, glyphs))
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


def _pool_and_rows(view: View, status: ServerStatus, room: int | None, size: Size) -> list[Text]:
    """Both get what they need if there is room for both; else the map at least half."""
    glyphs, gap = view.glyphs, [Text()] * size.gap
    needed = len(status.rows) + 1
    if not status.block_owners:
        return [*gap, *row_table(status.rows, size.width, room or needed, glyphs)]
    map_lines = -(-len(status.block_owners) // size.width)
    if room is None:
        map_lines = min(map_lines, HIGHEST_PRINTED_MAP)
    else:
        free = room - 2 - 2 * size.gap  # less the map's heading and legend
        map_lines = max(SHORTEST_MAP, min(map_lines, max(free // 2, free - needed)))
    drawn = pool_map(status.block_owners, size.width, map_lines, glyphs)
    lines = [*gap, _pool_line(status, glyphs), *drawn.lines]
    lines += [_legend(view, drawn.blocks_per_cell, size.width), *gap]
    row_room = needed if room is None else room - len(lines)
    return lines + row_table(status.rows, size.width, row_room, glyphs)


def _pool_line(status: ServerStatus, glyphs: Glyphs) -> Text:
    usable, held = status.usable_blocks, status.usable_blocks - status.free_blocks
    line = labelled("K/V pool")
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
    if view.hint:
        line.append(view.hint.rjust(max(0, width - len(text))))
    return line


def _wrapped(trouble: str, width: int) -> list[Text]:
    lines = textwrap.wrap(harmless(trouble), width, max_lines=TROUBLE_LINES)
    return [Text(line, style="bold red") for line in lines]


def _cut(line: Text, size: Size, glyphs: Glyphs) -> Text:
    if line.cell_len > size.width:
        line.truncate(size.width - 1)
        line.append(glyphs.ellipsis)
    line.no_wrap, line.end = True, "\n"
    return line
