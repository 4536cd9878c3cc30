"""Whether there is a worker to run on: who waits for it, and who is turned away."""

from __future__ import annotations

from scheduler.core.breaker import Breaker

_NONE_YET = "no worker has connected yet"


class Presence:
    """What the engine knows of its worker's comings and goings. Times are time.monotonic().

    Before the first connection nobody is taken. While a worker that was there is away requests
    wait for it, at most `recovery_timeout` seconds; after that, and while the worker crashes
    over and over, they end.
    """

    def __init__(self, recovery_timeout: float) -> None:
        self.breaker = Breaker()
        self._recovery_timeout = recovery_timeout
        self._missing = _NONE_YET  # empty while one is connected
        self._away_since: float | None = None  # None: connected, or never was

    def connected(self) -> None:
        self._missing, self._away_since = "", None

    def away(self, reason: str, now: float) -> None:
        """`reason` is for people. Of several the last one counts, from the first one on."""
        if self._missing and self._away_since is None:
            self._missing = f"{_NONE_YET}: {reason}"
            return
        self._missing = f"the worker is away: {reason}"
        if self._away_since is None:
            self._away_since = now

    @property
    def is_connected(self) -> bool:
        return not self._missing

    def turns_away(self, now: float) -> str:
        """Why requests end instead of waiting; empty if they wait or run."""
        if self._away_since is not None and now - self._away_since >= self._recovery_timeout:
            return f"{self._missing}, for more than {self._recovery_timeout:g} s"
        return self.breaker.reason(now)

    def why_not_ready(self, now: float) -> str:
        return self._missing or self.breaker.reason(now)
