"""The characters and colours that a dashboard is drawn with."""

from __future__ import annotations

from dataclasses import dataclass

# Numbers of the 256-colour palette, all light enough for black letters. Their number shares
# no factor with that of the letters, so that letter and colour together tell 286 rows apart.
OWNER_COLOURS = (75, 215, 114, 211, 141, 80, 185, 209, 110, 182, 151)
OWNER_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Glyphs:
    free: str
    cached: str
    scratch: str
    bar: str  # the part of a bar that is done
    rest: str  # and the part that is not
    levels: str  # of a curve, rising
    rule: str
    ellipsis: str
    dot: str  # between two pieces of text


UNICODE = Glyphs("·", "▒", "#", "━", "─", "▁▂▃▄▅▆▇█", "─", "…", "·")
ASCII = Glyphs(".", "%", "#", "=", "-", "_.-=+*%#", "-", "~", "|")


def glyphs_for(encoding: str) -> Glyphs:
    """`encoding` is the terminal's."""
    return UNICODE if encoding.lower().replace("-", "").startswith("utf8") else ASCII


def owner_letter(row: int) -> str:
    return OWNER_LETTERS[row % len(OWNER_LETTERS)]


def owner_colour(row: int) -> str:
    """A colour as rich names it."""
    return f"color({OWNER_COLOURS[row % len(OWNER_COLOURS)]})"
