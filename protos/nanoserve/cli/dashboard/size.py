"""How much room there is."""

from __future__ import annotations

from dataclasses import dataclass

# With so many lines they are not precious.
AIRY_HEIGHT = 32


@dataclass(frozen=True, slots=True)
class Size:
    """Of the terminal, in characters. `height` None: as high as it takes."""

    width: int
    height: int | None

    @property
    def gap(self) -> int:
        """Empty lines between parts."""
        return 1 if self.height is None or self.height >= AIRY_HEIGHT else 0

    @property
    def curve_height(self) -> int:
        return 3 if self.height is not None and self.gap else 1
