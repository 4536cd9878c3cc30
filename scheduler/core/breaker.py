"""Stops serving while the worker crashes over and over."""

from __future__ import annotations

import logging
from collections import deque

log = logging.getLogger(__name__)

# Workers lost in a row, without a token in between, each within WINDOW of the last. More than what
# one request that crashes the worker is counted for (scheduler/core/inquest.py), which is four.
LOSSES = 5
WINDOW_SECONDS = 120.0
COOLDOWN_SECONDS = 10.0
LONGEST_COOLDOWN_SECONDS = 160.0


class Breaker:
    """Opens after LOSSES losses. Once it has cooled down it lets requests through again: a
    token closes it, one more loss opens it for twice as long. Times are time.monotonic()."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque()
        self._cooldown = 0.0  # of the last opening; 0 while closed
        self._open_until = 0.0

    def lost(self, now: float) -> bool:
        """Counts a worker that was lost; true if that opens the breaker."""
        if self._losses and now - self._losses[-1] > WINDOW_SECONDS:
            self._losses.clear()
        self._losses.append(now)
        if len(self._losses) < LOSSES and not self._cooldown:
            return False
        self._cooldown = min(max(COOLDOWN_SECONDS, 2 * self._cooldown), LONGEST_COOLDOWN_SECONDS)
        self._open_until = now + self._cooldown
        log.error("%s", self.reason(now))
        return True

    def progressed(self) -> None:
        """A token was made."""
        if self._losses or self._cooldown:
            self._losses.clear()
            self._cooldown = self._open_until = 0.0

    def reason(self, now: float) -> str:
        """Why nothing is served; empty if the breaker lets requests through."""
        if now >= self._open_until:
            return ""
        return (
            f"the worker crashed {len(self._losses)} times in a row without making a token; "
            f"requests are taken again in {self._open_until - now:.0f} s"
        )
