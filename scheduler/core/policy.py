"""Who runs in a step with how many tokens, and who is preempted: what every policy says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scheduler.core.hold import Hold
from scheduler.core.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Decision:
    """The sequences of a step; their blocks fit the free ones. Shapes: s sequences. A row
    that has reached its limit has query_len 1 and rewrites its last slot."""

    rows: np.ndarray  # int64 [s], no row twice
    query_lens: np.ndarray  # int64 [s], >= 1
    admitted: list[int]  # those of the rows that were taken for this step
    # All of them are decodes, and nobody waits who could be in the step: it may be repeated.
    repeats: bool = False


class Policy(Protocol):
    """Decides a step. It may admit and preempt through the ledger; blocks are taken
    afterwards, all together."""

    @property
    def hold(self) -> Hold:
        """What a request that ended well leaves behind."""
        ...

    def decide(self, ledger: Ledger, budget: int, now: float) -> Decision:
        """At most `budget` tokens, which is at least the number of rows. `now` is on
        time.monotonic()."""
        ...

    def due(self, ledger: Ledger, now: float) -> float | None:
        """After a decision to run nothing: seconds until the next may be another one though
        nothing has come; None if it will not be."""
        ...


def share_out(gaps: list[int], budget: int) -> list[int]:
    """Splits a token budget over prompts in order: each takes its gap, or half of the
    rest where it cannot finish; then the first unfinished get what is left."""
    shares = []
    for gap in gaps:
        share = gap if gap <= budget else (budget + 1) // 2
        shares.append(share)
        budget -= share
    for i, gap in enumerate(gaps):
        if not budget:
            break
        more = min(gap - shares[i], budget)
        shares[i] += more
        budget -= more
    return shares
