"""The block pool as a map: a character for a block, or for several of a large pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from nanoserve.cli.dashboard.glyphs import Glyphs, owner_colour, owner_letter
from nanoserve.status import BlockOwner


@dataclass(frozen=True, slots=True)
class PoolMap:
    """`lines` are of one width; `blocks_per_cell` is what a cell stands for, save that of the
    scratch block, which has one to itself."""

    lines: list[Text]
    blocks_per_cell: int


def pool_map(owners: Sequence[int], width: int, height: int, glyphs: Glyphs) -> PoolMap:
    """`owners` as in ServerStatus.block_owners; at most `height` lines of `width` cells.

    A cell of several blocks never hides a block in use: it shows the row that holds most
    of them, as a capital on a ground of its colour if at least half of the cell is held, and
    else as a small letter without ground. Unheld blocks are cached if any of them is.
    """
    per_cell = blocks_per_cell(len(owners), width * height)
    cells = [owners[:1]]
    cells += [owners[start : start + per_cell] for start in range(1, len(owners), per_cell)]
    lines = []
    for start in range(0, len(cells), width):
        line = Text(no_wrap=True, end="")
        for cell in cells[start : start + width]:
            line.append(*_drawn(cell, glyphs))
        lines.append(line)
    return PoolMap(lines, per_cell)


def blocks_per_cell(num_blocks: int, num_cells: int) -> int:
    """The smallest power of two with which all fit."""
    per_cell = 1
    while 1 + -(-(num_blocks - 1) // per_cell) > num_cells:
        per_cell *= 2
    return per_cell


def _drawn(cell: Sequence[int], glyphs: Glyphs) -> tuple[str, str]:
    """Character and style."""
    counts = Counter(cell)
    if counts[BlockOwner.SCRATCH]:
        return glyphs.scratch, "bold reverse"
    held = {row: count for row, count in counts.items() if row >= 0}
    if not held:
        cached = counts[BlockOwner.CACHED]
        return (glyphs.cached, "cyan") if cached else (glyphs.free, "bright_black")
    row = max(held, key=lambda owner: (held[owner], -owner))
    if 2 * sum(held.values()) >= len(cell):
        return owner_letter(row), f"black on {owner_colour(row)}"
    return owner_letter(row).lower(), owner_colour(row)
