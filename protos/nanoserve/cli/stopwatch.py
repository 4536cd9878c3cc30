"""Time to first token and tokens per second of one stream, as its client sees them."""

from __future__ import annotations

import time
from collections.abc import Callable

from nanoserve.output import Chunk


class Stopwatch:
    """Starts when it is made; shown each chunk as it arrives.

    The first token is the first chunk that carries a token id: chunks with text alone,
    or with nothing, do not count. The rate is that of the tokens after the first
    chunk's, over the time from it to the last chunk with tokens.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._first: float | None = None
        self._last = 0.0
        self._first_tokens = 0
        self.tokens = 0

    def saw(self, chunk: Chunk) -> None:
        if not chunk.token_ids:
            return
        self._last = self._clock()
        if self._first is None:
            self._first = self._last
            self._first_tokens = len(chunk.token_ids)
        self.tokens += len(chunk.token_ids)

    @property
    def first_token_seconds(self) -> float | None:
        """From the start to the first token; None if none came."""
        return None if self._first is None else self._first - self._start

    @property
    def tokens_per_second(self) -> float | None:
        """None if all tokens came in one chunk, which tells no rate."""
        if self._first is None or self._last <= self._first:
            return None
        return (self.tokens - self._first_tokens) / (self._last - self._first)

    def summary(self) -> str:
        """One line for a person."""
        if self.first_token_seconds is None:
            return "no tokens"
        rate = self.tokens_per_second
        return (
            f"time to first token {self.first_token_seconds:.3f} s, "
            f"{'-' if rate is None else f'{rate:.1f}'} tokens/s, {self.tokens} tokens"
        )
