"""The running rows as a table: a line each, with bars for prompt and output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from nanoserve.cli.dashboard.glyphs import Glyphs, owner_colour, owner_letter
from nanoserve.cli.figures import latency
from nanoserve.cli.terminal import harmless
from nanoserve.status import RunningRow

SHORTEST_NAME = 8
LONGEST_NAME = 24
SHORTEST_BAR = 5


@dataclass(frozen=True, slots=True)
class _Widths:
    name: int
    bar: int
    prompt: int
    output: int
    blocks: int


def row_table(rows: Sequence[RunningRow], width: int, height: int, glyphs: Glyphs) -> list[Text]:
    """A heading and at most `height` - 1 lines of at most `width` characters; the last tells
    of rows that there was no room for."""
    widths = _widths(rows, width)
    lines = [_heading(widths)]
    room = height - 1
    shown = rows if len(rows) <= room else rows[: max(0, room - 1)]
    lines += [_line(row, widths, glyphs) for row in shown]
    if len(shown) < len(rows) and room > 0:
        more = len(rows) - len(shown)
        lines.append(Text(f"   and {more:,} more", style="bright_black", no_wrap=True))
    return lines


def _widths(rows: Sequence[RunningRow], width: int) -> _Widths:
    """What counts and blocks need, then names and bars of what is left."""
    prompt = max([len(_prompt_count(row)) for row in rows], default=0)
    output = max([len(_output_count(row)) for row in rows], default=0)
    blocks = max([len(f"{row.blocks:,}") for row in rows] + [len("blocks")])
    # Letter, two bars' gaps, counts' gaps, blocks and time with theirs.
    left = width - len("A  ") - prompt - output - blocks - len("999 min") - 2 * 4
    longest = max([len(row.request_id) for row in rows] + [len("request")])
    name = max(SHORTEST_NAME, min(longest, LONGEST_NAME, left // 3))
    return _Widths(name, max(SHORTEST_BAR, (left - name - 2) // 2), prompt, output, blocks)


def _heading(widths: _Widths) -> Text:
    bar = widths.bar + 1
    text = (
        f"   {'request':<{widths.name}}  "
        f"{'prompt':<{bar + widths.prompt}}  {'output':<{bar + widths.output}}  "
        f"{'blocks':>{widths.blocks}}  {'time':>7}"
    )
    return Text(text, style="bold", no_wrap=True)


def _line(row: RunningRow, widths: _Widths, glyphs: Glyphs) -> Text:
    colour = owner_colour(row.row)
    name = harmless(row.request_id)
    if len(name) > widths.name:
        name = name[: widths.name - 1] + glyphs.ellipsis
    prompt = row.computed_prompt_tokens / row.prompt_tokens if row.prompt_tokens else 0.0
    output = row.output_tokens / row.max_tokens if row.max_tokens else 0.0
    line = Text(no_wrap=True, end="")
    line.append(owner_letter(row.row), f"black on {colour}")
    line.append(f"  {name:<{widths.name}}  ")
    line.append(bar(prompt, widths.bar, glyphs, colour))
    line.append(f" {_prompt_count(row):<{widths.prompt}}  ")
    line.append(bar(output, widths.bar, glyphs, colour))
    line.append(f" {_output_count(row):<{widths.output}}  ")
    line.append(f"{row.blocks:>{widths.blocks},}  {latency(row.running_seconds):>7}")
    return line


def bar(share: float, width: int, glyphs: Glyphs, colour: str) -> Text:
    """Full only at the end, and begun as soon as there is something."""
    done = round(share * width)
    if 0 < share < 1:
        done = min(max(done, 1), width - 1)
    text = Text(no_wrap=True, end="")
    text.append(glyphs.bar * done, colour)
    text.append(glyphs.rest * (width - done), "bright_black")
    return text


def _prompt_count(row: RunningRow) -> str:
    return f"{row.computed_prompt_tokens}/{row.prompt_tokens}"


def _output_count(row: RunningRow) -> str:
    return f"{row.output_tokens}/{row.max_tokens}"
