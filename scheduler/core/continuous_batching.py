"""Requests come and go between any two steps."""

from __future__ import annotations

import numpy as np

from scheduler.core.hold import Hold
from scheduler.core.ledger import Ledger
from scheduler.core.policy import Decision, share_out
from scheduler.core.request import Request
from scheduler.core.rows import Rows

_NOBODY = np.zeros(0, np.int64)


class ContinuousBatching:
    """One token budget per step: every decode first, then chunks of prompts.

    Prompts are served in order of arrival. One that the rest of the budget cannot
    finish takes half of that rest, so that short prompts behind it go on; what they
    leave it gets as well. What the prefix cache has of a request is not computed again.
    The first of the waiting is admitted once its known tokens fit beside what running
    prompts have yet to compute and one more block for each running row; nobody passes
    it. If the step's blocks do not fit, the youngest is preempted and the sum is taken
    again.
    """

    hold = Hold.NOTHING

    def decide(self, ledger: Ledger, budget: int, now: float) -> Decision:
        decodes = prompts = _NOBODY
        if ledger.rows.num_live:
            decodes, prompts = self._make_room(ledger, budget)
        candidates = self._admissible(ledger)
        gaps = _gaps(ledger.rows, prompts) + [ledger.to_compute(request) for request in candidates]
        if not gaps:
            return Decision(decodes, np.ones(len(decodes), np.int64), [], repeats=True)
        chunks = share_out(gaps, budget - len(decodes))
        admitted = [ledger.admit_head(now) for chunk in chunks[len(prompts) :] if chunk]
        rows = [*prompts.tolist(), *admitted]
        shares = [(row, chunk) for row, chunk in zip(rows, chunks, strict=False) if chunk]
        taken = np.array(shares, np.int64).reshape(-1, 2)
        if not len(decodes):
            return Decision(taken[:, 0].copy(), taken[:, 1].copy(), admitted)
        ones = np.ones(len(decodes), np.int64)
        return Decision(
            np.concatenate([decodes, taken[:, 0]]), np.concatenate([ones, taken[:, 1]]), admitted
        )

    def due(self, ledger: Ledger, now: float) -> float | None:  # noqa: ARG002
        return None

    def _make_room(self, ledger: Ledger, budget: int) -> tuple[np.ndarray, np.ndarray]:
        """Preempts until what the running rows would compute fits: those of them one
        token behind, and prompts by arrival."""
        rows = ledger.rows
        while True:
            decodes, prompts = _running(rows)
            chunks = share_out(_gaps(rows, prompts), budget - len(decodes))
            running = np.concatenate([decodes, prompts])
            query_lens = np.concatenate([np.ones(len(decodes), np.int64), np.array(chunks, int)])
            missing = ledger.tables.missing(running, rows.computed[running] + query_lens)
            if missing.sum() <= ledger.allocator.num_free:
                return decodes, prompts
            if len(running) == 1:
                # It fits alone: rows about to be answered hold the rest. Until then
                # nobody runs.
                return running[:0], running[:0]
            ledger.preempt(ledger.youngest_runnable())

    def _admissible(self, ledger: Ledger) -> list[Request]:
        """Those of the waiting, in order, that rows and blocks are there for."""
        rows, tables = ledger.rows, ledger.tables
        if not ledger.waiting or not rows.num_free:
            return []
        spare = ledger.allocator.num_free - rows.num_live
        if rows.num_live:
            running = rows.runnable.nonzero()[0]
            spare -= int(tables.missing(running, rows.known[running]).sum())
        admissible: list[Request] = []
        for request in ledger.waiting:
            if request.unanswered or len(admissible) == rows.num_free:
                break
            spare -= ledger.blocks_for(request, len(request.tokens))
            alone = rows.num_live == 0 and not admissible
            if spare < 0 and not alone:
                break
            admissible.append(request)
            spare -= 1
        return admissible


def _running(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The rows that may run: those one token behind, and prompts by arrival."""
    running = rows.runnable.nonzero()[0]
    behind = rows.known[running] - rows.computed[running]
    prompts = running[behind > 1]
    return running[behind == 1], prompts[rows.order[prompts].argsort()]


def _gaps(rows: Rows, of: np.ndarray) -> list[int]:
    gaps: list[int] = (rows.known[of] - rows.computed[of]).tolist()
    return gaps
