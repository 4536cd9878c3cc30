"""Writing a model's text where a person reads it."""

from __future__ import annotations

import sys
import unicodedata


class Writer:
    """Writes an output to stdout as it comes, and ends it with a newline.

    On a terminal, control characters other than newline and tab become U+FFFD: a
    model's text must not move the cursor or change the terminal's settings.
    """

    def __init__(self) -> None:
        self._at_line_start = True
        self._guard = sys.stdout.isatty()

    def write(self, text: str) -> None:
        if not text:
            return
        sys.stdout.write(harmless(text) if self._guard else text)
        sys.stdout.flush()
        self._at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """A newline, unless nothing was written since the last one."""
        if not self._at_line_start:
            self.write("\n")


def harmless(text: str) -> str:
    """`text` with control characters, but for newline and tab, as U+FFFD."""
    return "".join(
        "�" if unicodedata.category(char) == "Cc" and char not in "\n\t" else char for char in text
    )
