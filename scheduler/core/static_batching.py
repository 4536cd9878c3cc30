"""One batch at a time, from beginning to end: what continuous batching is compared with."""

from __future__ import annotations

import numpy as np

from scheduler.core.hold import Hold
from scheduler.core.ledger import Ledger
from scheduler.core.policy import Decision, share_out

MOST_WAIT = 60.0  # seconds


class StaticBatching:
    """Requests are admitted together once the batch before is wholly done, as many, in
    order of arrival, as rows and blocks are there for.

    Blocks for all that a request may grow to are reserved at admission, so nobody is ever
    preempted. Every row of the batch is in every step until the slowest is done: one that
    reached its own end decodes on, and at its limit rewrites its last slot. A request that
    fails or is cancelled gives its row and blocks back at once, to nobody: the batch is
    closed. A prompt's chunk is at least one token, and a row that is through with its
    prompt decodes beside those that are not.
    """

    def __init__(
        self, batch: int | None = None, wait: float = 0.0, return_together: bool = False
    ) -> None:
        """`batch`: most requests of one batch; None: the worker's rows. `wait`: seconds from
        its first request's arrival for which a batch that is not full waits for more.
        `return_together`: requests end when their batch does. Raises ValueError for a value
        out of range."""
        if batch is not None and batch < 1:
            raise ValueError(f"static_batch is {batch}, must be at least 1")
        if not 0 <= wait <= MOST_WAIT:
            raise ValueError(f"static_wait is {wait:g}, must be from 0 to {MOST_WAIT:g} seconds")
        self.hold = Hold.ROW_AND_END if return_together else Hold.ROW
        self._batch = batch
        self._wait = wait

    def decide(self, ledger: Ledger, budget: int, now: float) -> Decision:
        rows = ledger.rows
        admitted = [] if rows.num_live else self._admit(ledger, now)
        if not rows.runnable.any():
            none = np.empty(0, np.int64)
            return Decision(none, none, [])
        live = rows.live.nonzero()[0]
        live = live[rows.order[live].argsort()]
        query_lens = np.ones(len(live), np.int64)
        beyond_one = rows.known[live] - rows.computed[live] - 1
        chunked = bool(beyond_one.any())
        if chunked:
            query_lens += share_out(beyond_one.tolist(), budget - len(live))
        return Decision(live, query_lens, admitted, repeats=not chunked and not admitted)

    def due(self, ledger: Ledger, now: float) -> float | None:
        waiting = ledger.waiting
        if ledger.rows.num_live or not waiting:
            return None
        if len(waiting) >= self._size(ledger):
            return 0.0
        return max(0.0, waiting[0].submission.arrival + self._wait - now)

    def _admit(self, ledger: Ledger, now: float) -> list[int]:
        if self.due(ledger, now) != 0:
            return []
        admitted: list[int] = []
        spare = ledger.allocator.num_free
        while ledger.waiting and len(admitted) < self._size(ledger):
            # The last token sampled needs no slot.
            slots = ledger.waiting[0].limit - 1
            spare -= ledger.blocks_for(ledger.waiting[0], slots)
            if spare < 0:
                break
            row = ledger.admit_head(now)
            ledger.rows.reserved[row] = slots
            admitted.append(row)
        return admitted

    def _size(self, ledger: Ledger) -> int:
        most = ledger.rows.max_rows
        return most if self._batch is None else min(self._batch, most)
