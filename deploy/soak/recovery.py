"""How long it takes from the kill of a worker until its streams go on."""

from __future__ import annotations

import time
from dataclasses import dataclass

from deploy.soak.client import Call
from deploy.soak.server import Server


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds. `pause`: from the kill to the next token of any stream that was open, less what
    the worker took to start. `recompute`: from the moment that it listened until all of them
    had one, of the `tokens` that were in the pool; None if some never got one."""

    pause: float
    tokens: int
    recompute: float | None = None

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.recompute if self.recompute else None


class Recoveries:
    """`done` has those since the beginning."""

    def __init__(self, worker: Server) -> None:
        self.done: list[Recovery] = []
        self._worker = worker
        self._killed_at: float | None = None  # while nobody has had a token since
        self._starts = 0
        self._waiting: set[Call] = set()
        self._tokens = 0

    def killed(self, calls: set[Call], tokens: int) -> None:
        """To be called when the worker is killed, with the calls that are open, and what they
        have in the pool. One that was not over is given up."""
        self._killed_at, self._starts = time.monotonic(), self._worker.starts
        self._waiting, self._tokens = {call for call in calls if call.tokens}, tokens

    def got_tokens(self, call: Call) -> None:
        """Those that were on their way at the kill come before the next worker listens."""
        listening_at = self._listening_at()
        if call not in self._waiting or listening_at is None:
            return
        if self._killed_at is not None:
            start = listening_at - self._worker.started_at
            pause = time.monotonic() - self._killed_at - start
            self.done.append(Recovery(pause, self._tokens))
            self._killed_at = None
        self.ended(call)

    def ended(self, call: Call) -> None:
        """The last to end, or to go on, ends a recovery."""
        if call not in self._waiting:
            return
        self._waiting.discard(call)
        listening_at = self._listening_at()
        if not self._waiting and self._killed_at is None and listening_at is not None:
            last = self.done[-1]
            self.done[-1] = Recovery(last.pause, last.tokens, time.monotonic() - listening_at)

    def _listening_at(self) -> float | None:
        """None until the one that was started after the kill listens."""
        return self._worker.listening_at if self._worker.starts == self._starts + 1 else None
