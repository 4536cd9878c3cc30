"""How long a request that comes would wait for its first step."""

from __future__ import annotations

# Weight of one admission in the mean distance between them.
SMOOTHING = 1 / 32


class QueueWait:
    """Learns from the pace at which the waiting are admitted. Times are time.monotonic()."""

    def __init__(self) -> None:
        self._interval: float | None = None  # seconds from admission to admission; None: unknown
        self._admitted = 0
        self._last = 0.0  # when the last one was admitted
        self._busy = False  # whether others waited then, so that the pace is the server's own

    def observe(self, admitted: int, waiting: int, now: float) -> None:
        """After each turn of the engine. `admitted`: total since the start."""
        count = admitted - self._admitted
        if count > 0:
            if self._busy:
                self._learn((now - self._last) / count, count)
            self._admitted, self._last = admitted, now
        if count > 0 or not waiting:
            self._busy = waiting > 0

    def expected(self, waiting: int, now: float) -> float:
        """Seconds; 0 if nobody waits or the pace is not known. A pause longer than usual, such as
        for want of a worker, is taken to last as long again, for the next admission; those after
        it come at the pace with this one pause in it."""
        if not waiting or self._interval is None:
            return 0.0
        pause = max(self._interval, now - self._last if self._busy else 0.0)
        return pause + waiting * _with(self._interval, pause, 1)

    def _learn(self, interval: float, count: int) -> None:
        known = interval if self._interval is None else self._interval
        self._interval = _with(known, interval, count)


def _with(known: float, interval: float, count: int) -> float:
    """The mean once `count` admissions at this distance are in it."""
    kept = (1 - SMOOTHING) ** count
    return kept * known + (1 - kept) * interval
