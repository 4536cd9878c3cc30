"""A request as the engine knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.front_end import Submission

NO_ROW = -1


@dataclass(slots=True, eq=False)
class Request:
    """One submission on its way through the engine.

    It waits (no row), runs (a row), is *finishing* (a row, and its certain last
    token is in flight: `Rows.finishing`), or has ended. While it has a row, its
    tokens and counts are that row's columns in `Rows`; `tokens` is then as old as
    its admission.
    """

    submission: Submission
    order: int  # of arrival at the engine; the youngest has the largest
    limit: int  # most tokens, prompt plus output
    seed: int
    tokens: np.ndarray  # int32 [n]: prompt, then output so far
    row: int = NO_ROW
    ended: bool = False
    # Tokens in flight for a row that was taken away. Until they are answered the
    # request is not admitted again.
    unanswered: int = 0
    preemptions: int = 0
    started_at: float | None = None  # time.monotonic() of the first step planned
    first_token_at: float | None = None
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
    def prompt_len(self) -> int:
        return len(self.submission.prompt_ids)
