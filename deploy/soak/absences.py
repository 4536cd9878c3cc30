"""When a server could not be had."""

from __future__ import annotations

from collections import defaultdict

# That a client may take to find a server that is back: its longest pause between connections,
# a fifth of it that the library may add, and a little.
_RECONNECT_SECONDS = 8.0


class Absences:
    """By address. Times are time.monotonic()."""

    def __init__(self) -> None:
        self._spans: dict[str, list[list[float]]] = defaultdict(list)

    def began(self, address: str, now: float) -> None:
        """Of one that begins before another is over, the end is that of both."""
        spans = self._spans[address]
        if not spans or spans[-1][1] < now:
            spans.append([now, float("inf")])

    def ended(self, address: str, now: float) -> None:
        if self._spans[address]:
            self._spans[address][-1][1] = now

    def touch(self, address: str, began: float, ended: float) -> bool:
        """Whether a call of that time may have met one."""
        return any(
            began <= until + _RECONNECT_SECONDS and since <= ended
            for since, until in self._spans[address]
        )
