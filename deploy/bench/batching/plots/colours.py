"""One colour for each row: Okabe and Ito's eight, told apart with any colour vision."""

from __future__ import annotations

ROW_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7"),
    *("#56B4E9", "#D55E00", "#F0E442", "#7A7A7A"),
)
FREE, SCRATCH = "#F4F4F4", "#D0D0D0"
HATCH = "////"


def row_colour(row: int) -> str:
    return ROW_COLOURS[row % len(ROW_COLOURS)]
