"""When to start a server again that has ended."""

from __future__ import annotations

FIRST_DELAY = 0.5  # seconds; doubles from end to end
LONGEST_DELAY = 30.0
STEADY = 60.0  # seconds of running after which its ends are forgotten


class Restarts:
    """Times are time.monotonic()."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._delay = FIRST_DELAY
        self._due: float | None = None

    def ended(self, now: float) -> float | None:
        """To be told again and again that it has ended. The first time: seconds until it is
        due to start; then None."""
        if self._due is not None:
            return None
        if now - self._started >= STEADY:
            self._delay = FIRST_DELAY
        delay, self._delay = self._delay, min(2 * self._delay, LONGEST_DELAY)
        self._due = now + delay
        return delay

    def is_due(self, now: float) -> bool:
        return self._due is not None and now >= self._due

    def started(self, now: float) -> None:
        self._started, self._due = now, None
