"""What the statuses of one server tell together: rates, and latencies of late."""

from __future__ import annotations

from collections import deque

from nanoserve.latency import LatencyHistogram
from nanoserve.status import ServerStatus

# Latencies are those of the last so many seconds: enough for percentiles, and of late.
WINDOW_SECONDS = 10.0
# Rates kept for the curve: no terminal is wider.
MAX_RATES = 500


class History:
    """Shown each status as it comes. A server that was started again begins a new one."""

    def __init__(self) -> None:
        self.output_rates: deque[float] = deque(maxlen=MAX_RATES)  # tokens/s, oldest first
        self.prompt_rates: deque[float] = deque(maxlen=MAX_RATES)
        self.step_rate: float | None = None
        self._recent: deque[ServerStatus] = deque()  # of the window, oldest first

    @property
    def status(self) -> ServerStatus | None:
        """The last one."""
        return self._recent[-1] if self._recent else None

    @property
    def window_seconds(self) -> float:
        """What the latencies are of; 0 if they are since the server's start."""
        if len(self._recent) < 2:
            return 0.0
        return self._recent[-1].uptime_seconds - self._recent[0].uptime_seconds

    @property
    def first_token(self) -> LatencyHistogram | None:
        return self._of_late([status.time_to_first_token for status in self._recent])

    @property
    def inter_token(self) -> LatencyHistogram | None:
        return self._of_late([status.inter_token_latency for status in self._recent])

    @property
    def prefix_tokens(self) -> tuple[int, int]:
        """Prompt tokens found in the prefix cache, and looked up: of the window."""
        found, sought = 0, 0
        if self._recent:
            found, sought = self._recent[-1].prefix_hits, self._recent[-1].prefix_queries
        if len(self._recent) > 1:
            found -= self._recent[0].prefix_hits
            sought -= self._recent[0].prefix_queries
        return found, sought

    def add(self, status: ServerStatus) -> None:
        last = self.status
        if last is not None:
            seconds = status.uptime_seconds - last.uptime_seconds
            if seconds < 0 or status.steps < last.steps:
                self._forget()
            elif seconds > 0:
                self._add_rates(last, status, seconds)
        self._recent.append(status)
        while len(self._recent) > 2 and (
            status.uptime_seconds - self._recent[1].uptime_seconds >= WINDOW_SECONDS
        ):
            self._recent.popleft()

    def _forget(self) -> None:
        self.output_rates.clear()
        self.prompt_rates.clear()
        self.step_rate = None
        self._recent.clear()

    def _add_rates(self, last: ServerStatus, status: ServerStatus, seconds: float) -> None:
        # An output total may fall by the tokens behind a stop string.
        output = max(0, status.output_tokens - last.output_tokens)
        self.output_rates.append(output / seconds)
        self.prompt_rates.append((status.prompt_tokens - last.prompt_tokens) / seconds)
        self.step_rate = (status.steps - last.steps) / seconds

    @staticmethod
    def _of_late(histograms: list[LatencyHistogram | None]) -> LatencyHistogram | None:
        """The newest less the oldest; None if the newest is missing. A status that the engine
        did not answer in time has none."""
        known = [histogram for histogram in histograms if histogram is not None]
        if not known or histograms[-1] is None:
            return None
        return known[-1].since(known[0]) if len(known) > 1 else known[0]
