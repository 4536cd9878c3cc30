"""A request as the engine knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.front_end import FinishReason, RequestUsage, Submission
from scheduler.core.suspicion import Suspicion

NO_ROW = -1


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a request ended well. `output_tokens`: where text ended it, after how many."""

    reason: FinishReason
    stop_token: int | None = None  # the token that stopped it, if one did
    output_tokens: int | None = None


@dataclass(slots=True, eq=False)
class Request:
    """One submission on its way through the engine.

    It waits (no row), runs (a row), is *finishing* (a row, and its certain last
    token is in flight: `Rows.finishing`), or has ended. While it has a row, its
    tokens and counts are that row's columns in `Rows`; `tokens` is then as old as
    its admission. In a static batch its row may be *held* (`Rows.held`): its output is
    complete in `tokens`, and it has ended or has a verdict.
    """

    submission: Submission
    order: int  # of arrival at the engine; the youngest has the largest
    limit: int  # most tokens, prompt plus output
    seed: int
    tokens: np.ndarray  # int32 [n]: prompt, then output so far
    row: int = NO_ROW
    ended: bool = False
    verdict: Verdict | None = None  # of one that ends with its batch, and waits for that
    # Tokens in flight for a row that was taken away. Until they are answered the
    # request is not admitted again.
    unanswered: int = 0
    preemptions: int = 0
    started_at: float | None = None  # time.monotonic() of the first step planned
    first_token_at: float | None = None
    last_token_at: float = 0.0  # as old as its admission while it has a row
    suspicion: Suspicion = field(default_factory=Suspicion)  # that it crashes the worker
    # The prefixes that it finds in the cache while it waits, as of the last time it was looked at.
    found: list[int] = field(default_factory=list)
    cached: int = 0  # prompt tokens that it found when it was first given a row
    lost: int = 0  # tokens that were in the pool when its last row was taken away
    recomputed: int = 0  # of such, those that were computed once more
    stop_ids: np.ndarray = field(init=False)  # int32, in no order

    def __post_init__(self) -> None:
        self.stop_ids = np.fromiter(self.submission.stop_ids, np.int32)

    @property
    def handle(self) -> int:
        return self.submission.handle

    @property
    def request_id(self) -> str:
        return self.submission.request_id

    @property
    def num_logprobs(self) -> int:
        """How many come with each of its tokens; 0: it asks for none."""
        top = self.submission.top_logprobs
        return 0 if top is None else 1 + top

    def usage(self, now: float, output_tokens: int | None = None) -> RequestUsage:
        """Of a request whose tokens are its own: without a row, or held. `output_tokens`
        counts where text ended it earlier."""
        arrival, first = self.submission.arrival, self.first_token_at
        made = len(self.tokens) - self.prompt_len
        return RequestUsage(
            prompt_tokens=self.prompt_len,
            output_tokens=made if output_tokens is None else output_tokens,
            queue_seconds=(now if self.started_at is None else self.started_at) - arrival,
            first_token_seconds=None if first is None else first - arrival,
            total_seconds=now - arrival,
            preemptions=self.preemptions,
            recomputed_tokens=self.recomputed,
            cached_tokens=self.cached,
        )

    @property
    def prompt_len(self) -> int:
        return len(self.submission.prompt_ids)
