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
from scheduler.core.window import Window

# Seconds. A trial that took less is repeated at once: the others were not held up by it for long.
SHORT_TRIAL = 10.0


class OneByOne:
    """A policy around another: while there are suspects nobody else is in a step, and of them
    one at a time, until it is cleared. The others keep what they hold and pause.

    Before a suspect is tried again there is a recess, if that trial and what came of it took long:
    the others have the worker for the same time. Else a request that hangs the worker would hold
    them up for several step timeouts on end.

    A policy whose rows outlive their requests knows no suspects: it may not preempt.
    """

    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self._suspects: deque[Request] = deque()
        self._window: Window | None = None  # of the worker at hand
        # Times are time.monotonic(). Since when the first suspect is tried; the same of the trial
        # that the last worker was lost in; until when the recess lasts. None: never.
        self._trial: float | None = None
        self._lost_trial: float | None = None
        self._recess: float | None = None
        self._others_ran = False  # in a recess, and may have steps in flight

    @property
    def hold(self) -> Hold:
        return self._inner.hold

    def suspect(self, requests: list[Request], window: Window) -> None:
        """Those of all requests, in order of arrival, that are suspects take the place of those
        before: first the ones that were alone at fewer losses, so that who is innocent gets on
        before the worker is risked again, and has shown that it can run. `window` is the steps
        of the worker that comes, which has none yet."""
        self._window = window
        self._lost_trial, self._trial, self._recess = self._trial, None, None
        self._others_ran = False
        found = [r for r in requests if r.suspicion.is_suspect(len(r.tokens)) and not r.ended]
        found.sort(key=lambda request: request.suspicion.alone)
        self._suspects = deque(found if self.hold is Hold.NOTHING else ())

    def decide(self, ledger: Ledger, budget: int, now: float) -> Decision:
        while self._suspects and _is_cleared(ledger, self._suspects[0]):
            self._suspects.popleft()
            self._trial = None
        if not self._suspects:
            return self._inner.decide(ledger, budget, now)
        if self._is_recess(ledger, now):
            return self._without_suspects(ledger, budget, now)
        if self._others_ran and self._window:
            return _nothing()  # a loss would not be this suspect's alone
        self._others_ran = False
        if self._trial is None:
            self._trial = now
        return _alone(ledger, self._suspects[0], budget, now)

    def due(self, ledger: Ledger, now: float) -> float | None:
        if self._is_recess(ledger, now):
            return (self._recess or now) - now
        return None if self._suspects else self._inner.due(ledger, now)

    def _is_recess(self, ledger: Ledger, now: float) -> bool:
        """Whether those who are no suspects have the worker for a while."""
        if not self._suspects or self._trial is not None or self._lost_trial is None:
            return False
        if not self._suspects[0].suspicion.alone:
            return False
        if self._recess is None:
            took = now - self._lost_trial
            self._recess = now + took if took >= SHORT_TRIAL else now
        waiting = sum(not suspect.ended for suspect in self._suspects)
        if ledger.num_requests == waiting:  # there are no others
            self._recess = now
        return now < self._recess

    def _without_suspects(self, ledger: Ledger, budget: int, now: float) -> Decision:
        """None of them has a row: what is left of them was not tried on this worker."""
        self._others_ran = True
        held = [suspect for suspect in self._suspects if not suspect.ended]
        for suspect in held:
            ledger.waiting.remove(suspect)
        decision = self._inner.decide(ledger, budget, now)
        for suspect in held:
            ledger.put_back(suspect)
        return decision


def _nothing() -> Decision:
    return Decision(np.empty(0, np.int64), np.empty(0, np.int64), [])


def _is_cleared(ledger: Ledger, request: Request) -> bool:
    waits = request.row == NO_ROW
    made = len(request.tokens) if waits else int(ledger.rows.accepted[request.row])
    return request.ended or request.suspicion.is_cleared_by(made)


def _alone(ledger: Ledger, request: Request, budget: int, now: float) -> Decision:
    """The suspect's next chunk. Each of its tokens is awaited before anything else is sent, so
    that no step of another is in flight beside it."""
    rows, row = ledger.rows, request.row
    if row != NO_ROW and rows.known[row] > rows.accepted[row]:
        return _nothing()
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
