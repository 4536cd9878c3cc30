"""The running rows as plain lines."""

from __future__ import annotations

from collections.abc import Sequence

from nanoserve.cli.figures import latency
from nanoserve.cli.terminal import harmless
from nanoserve.status import RunningRow

_HEADING = ("row", "request", "prompt", "output", "blocks", "time")
# Names are read from the left, figures from the right.
_LEFT = frozenset({1})


def row_lines(rows: Sequence[RunningRow]) -> list[str]:
    """A heading and a line each; one line that says so if nothing runs."""
    if not rows:
        return ["no request is running"]
    cells = [_HEADING, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_HEADING))]
    return ["  ".join(_padded(line, widths)).rstrip() for line in cells]


def _cells(row: RunningRow) -> tuple[str, ...]:
    return (
        str(row.row),
        harmless(row.request_id),
        f"{row.computed_prompt_tokens:,}/{row.prompt_tokens:,}",
        f"{row.output_tokens:,}/{row.max_tokens:,}",
        f"{row.blocks:,}",
        latency(row.running_seconds),
    )


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        f"{cell:<{width}}" if i in _LEFT else f"{cell:>{width}}"
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
