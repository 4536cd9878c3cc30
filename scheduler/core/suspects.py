"""Runs suspects alone, so that a request that crashes the worker fails alone.

Who is one, until when, and when it is blamed: scheduler/core/suspicion.py.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from scheduler.core.hold import Hold
from scheduler.core.ledger import Ledger
from scheduler.core.policy import Decision, Policy
from scheduler.core.request import NO_ROW, Request


class OneByOne:
    """A policy around another: while there are suspects nobody else is in a step, and of them
    one at a time, until it is cleared. The others keep what they hold and pause.

    A policy whose rows outlive their requests knows no suspects: it may not preempt.
    """

    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self._suspects: deque[Request] = deque()

    @property
    def hold(self) -> Hold:
        return self._inner.hold

    def suspect(self, requests: list[Request]) -> None:
        """Those of all requests, in order of arrival, that are suspects take the place of those
        before: first the ones that were alone at fewer losses, so that who is innocent gets on
        before the worker is risked again, and has shown that it can run."""
        found = [r for r in requests if r.suspicion.is_suspect(len(r.tokens)) and not r.ended]
        found.sort(key=lambda request: request.suspicion.alone)
        self._suspects = deque(found if self.hold is Hold.NOTHING else ())

    def decide(self, ledger: Ledger, budget: int, now: float) -> Decision:
        while self._suspects and _is_cleared(ledger, self._suspects[0]):
            self._suspects.popleft()
        if not self._suspects:
            return self._inner.decide(ledger, budget, now)
        return _alone(ledger, self._suspects[0], budget, now)

    def due(self, ledger: Ledger, now: float) -> float | None:
        return None if self._suspects else self._inner.due(ledger, now)


def _is_cleared(ledger: Ledger, request: Request) -> bool:
    waits = request.row == NO_ROW
    made = len(request.tokens) if waits else int(ledger.rows.accepted[request.row])
    return request.ended or request.suspicion.is_cleared_by(made)


def _alone(ledger: Ledger, request: Request, budget: int, now: float) -> Decision:
    """The suspect's next chunk. Each of its tokens is awaited before anything else is sent, so
    that no step of another is in flight beside it."""
    rows, row = ledger.rows, request.row
    nothing = Decision(np.empty(0, np.int64), np.empty(0, np.int64), [])
    if row != NO_ROW and rows.known[row] > rows.accepted[row]:
        return nothing
    chunk, missing = _next_chunk(ledger, request, budget)
    while missing > ledger.allocator.num_free or (row == NO_ROW and not rows.num_free):
        ledger.preempt(ledger.youngest_runnable(besides=row))
        chunk, missing = _next_chunk(ledger, request, budget)
    admitted = []
    if row == NO_ROW:
        row = ledger.admit(request, now)
        admitted.append(row)
    return Decision(np.array([row]), np.array([chunk]), admitted)


def _next_chunk(ledger: Ledger, request: Request, budget: int) -> tuple[int, int]:
    """How many tokens it computes next, and the free blocks that takes."""
    rows, tables, row = ledger.rows, ledger.tables, request.row
    if row == NO_ROW:
        gap = ledger.to_compute(request)
        chunk = min(gap, budget)
        return chunk, ledger.blocks_for(request, len(request.tokens) - gap + chunk)
    computed = int(rows.computed[row])
    chunk = min(int(rows.known[row]) - computed, budget)
    return chunk, tables.blocks_for(computed + chunk) - int(tables.num_blocks[row])
