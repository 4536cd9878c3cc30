"""Block tables over the shared pool, at one step."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from deploy.bench.batching.history import HeldRow, Moment
from deploy.bench.batching.plots.colours import FREE, SCRATCH, row_colour
from deploy.bench.batching.recording import Recording
from deploy.loadtest.plots.style import GREY, RED, picture

_COLUMNS = 5  # blocks beside each other
_LEFT, _RIGHT, _WIDTH = 30.0, 30.0, 100.0  # of the whole: tables, mapping, and the sum


def plot_block_tables(
    recording: Recording,
    moment: Moment,
    dead: Set[int],
    question: str,
    subtitle: str,
    path: Path,
) -> None:
    """`dead`: rows that compute for nobody in this step."""
    lines = -(-recording.num_blocks // _COLUMNS)
    height = max(5.5, 0.42 * lines + 1.6, 0.62 * len(moment.rows) + 1.9)
    with picture(path, question, subtitle, None, 1, size=(13, height)) as (axes,):
        axes.set_axis_off()
        axes.set_xlim(0, _WIDTH)
        axes.set_ylim(lines + 0.1, -1.0)
        pool = _Pool(axes, recording)
        pool.draw(moment)
        pitch = lines / max(len(moment.rows), 1)
        _heading(axes, 0, "Sequences and their block tables")
        _heading(
            axes, _LEFT, f"The pool: {recording.num_blocks} blocks of {recording.block_size} slots"
        )
        _heading(axes, _WIDTH - _RIGHT + 2, "This step: slot mapping, context length")
        for i, (row, held) in enumerate(sorted(moment.rows.items())):
            _draw_table(axes, row, held, (i + 0.08) * pitch, recording.block_size)
            _draw_mapping(axes, row, moment, row in dead, (i + 0.08) * pitch, recording.block_size)


class _Pool:
    """The blocks as strips of slots."""

    def __init__(self, axes: Axes, recording: Recording) -> None:
        self._axes = axes
        self._size = recording.block_size
        self._num_blocks = recording.num_blocks
        self._pitch = (_WIDTH - _LEFT - _RIGHT) / _COLUMNS
        self._slot = 0.9 * self._pitch / self._size

    def draw(self, moment: Moment) -> None:
        owners = {block: row for row, held in moment.rows.items() for block in held.blocks}
        written = set(moment.step.slot_mapping)
        for block in range(self._num_blocks):
            filled = 0
            if block in owners:
                held = moment.rows[owners[block]]
                before = held.blocks.index(block) * self._size
                filled = min(max(held.context_len - before, 0), self._size)
            self._draw_block(block, owners.get(block), filled, written)

    def _draw_block(self, block: int, row: int | None, filled: int, written: set[int]) -> None:
        x = _LEFT + block % _COLUMNS * self._pitch
        y = block // _COLUMNS
        whole = self._size * self._slot
        if row is None:
            face, name = (SCRATCH, "scratch") if block == 0 else (FREE, "")
            self._box(x, y, whole, face, GREY, 0.5)
            self._label(x + whole / 2, y, name or str(block), GREY)
            return
        colour = row_colour(row)
        if filled < self._size:
            self._box(x, y, whole, "white", colour, 1.0, dashed=True)
            for slot in range(filled + 1, self._size):
                self._line(x + slot * self._slot, y, colour)
        if filled:
            self._box(x, y, filled * self._slot, colour, colour, 1.0)
        for offset in range(self._size):
            if block * self._size + offset in written:
                self._mark(x + offset * self._slot, y)
        self._label(x + whole / 2, y, f"{block}", "black")

    def _box(
        self, x: float, y: float, width: float, face: str, edge: str, line: float,
        dashed: bool = False,
    ) -> None:  # fmt: skip
        style = (0, (3, 2)) if dashed else "-"
        self._axes.add_patch(
            Rectangle((x, y + 0.12), width, 0.76, fc=face, ec=edge, lw=line, ls=style)
        )

    def _mark(self, x: float, y: float) -> None:
        self._axes.add_patch(Rectangle((x, y + 0.68), self._slot, 0.2, fc="black", ec="none"))

    def _line(self, x: float, y: float, colour: str) -> None:
        span = [y + 0.12, y + 0.88]
        self._axes.plot([x, x], span, color=colour, linewidth=0.6, linestyle=(0, (2, 2)))

    def _label(self, x: float, y: float, text: str, colour: str) -> None:
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
        self._axes.text(
            x, y + 0.4, text, ha="center", va="center", fontsize=7.5, color=colour, bbox=box
        )


def _heading(axes: Axes, x: float, text: str) -> None:
    axes.text(x, -0.55, text, fontsize=11, weight="bold", va="center")


def _draw_table(axes: Axes, row: int, held: HeldRow, y: float, size: int) -> None:
    axes.add_patch(Rectangle((0, y + 0.05), 1.1, 0.7, fc=row_colour(row), ec="none"))
    tokens = f"prompt {held.prompt_len}, {held.context_len} tokens in the pool"
    axes.text(1.8, y + 0.38, f"row {row}: {tokens}", fontsize=9, weight="bold", va="center")
    used = -(-held.context_len // size)
    blocks = ", ".join(map(str, held.blocks[:used]))
    reserved = ", ".join(map(str, held.blocks[used:]))
    text = f"[{blocks}]" + (f" reserved [{reserved}]" if reserved else "")
    axes.text(1.8, y + 1.0, text, fontsize=8, va="center", color="#222222")


def _draw_mapping(axes: Axes, row: int, moment: Moment, is_dead: bool, y: float, size: int) -> None:
    step, x = moment.step, _WIDTH - _RIGHT + 2
    axes.add_patch(Rectangle((x, y + 0.05), 1.1, 0.7, fc=row_colour(row), ec="none"))
    if row not in step.rows:
        axes.text(x + 1.8, y + 0.38, "not in this step", fontsize=9, va="center", color=GREY)
        return
    i = step.rows.index(row)
    start = sum(step.query_lens[:i])
    slots = step.slot_mapping[start : start + step.query_lens[i]]
    where = f"block {slots[-1] // size}, offset {slots[-1] % size}"
    mapping = f"slot {slots[0]}" if len(slots) == 1 else f"{len(slots)} slots, the last {slots[-1]}"
    verb = "for nobody: rewrites" if is_dead else "writes"
    colour = RED if is_dead else "black"
    axes.text(
        x + 1.8, y + 0.38, f"{verb} {mapping}", fontsize=9, weight="bold", va="center",
        color=colour,
    )  # fmt: skip
    context = f"{where}; reads {step.context_lens[i]} tokens"
    axes.text(x + 1.8, y + 1.0, context, fontsize=8, va="center", color="#222222")
