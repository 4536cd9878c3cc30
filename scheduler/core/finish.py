"""How requests end well: at once, or with their batch."""

from __future__ import annotations

import numpy as np

from scheduler.core.front_end import Finish, Finished
from scheduler.core.hold import Hold
from scheduler.core.ledger import Ledger
from scheduler.core.outbox import Outbox
from scheduler.core.request import NO_ROW, Request, Verdict


def finish(ledger: Ledger, request: Request, verdict: Verdict, outbox: Outbox, now: float) -> None:
    """Ends a request well, leaving behind what the policy holds."""
    if request.row == NO_ROW or ledger.hold is Hold.NOTHING:
        ledger.end(request)
        _tell(ledger, request, verdict, outbox, now)
        return
    ledger.rows.hold(request.row)
    if ledger.hold is Hold.ROW:
        ledger.end(request, keep_row=True)
        _tell(ledger, request, verdict, outbox, now)
    else:
        request.verdict = verdict


def end_batch(ledger: Ledger, outbox: Outbox, now: float) -> None:
    """Releases what is held, once nothing else runs."""
    if ledger.hold is Hold.NOTHING:
        return
    held = ledger.rows.held
    if held.any() and not (ledger.rows.live & ~held).any():
        release_held(ledger, outbox, now)


def release_held(ledger: Ledger, outbox: Outbox, now: float) -> None:
    """Takes the held rows away; those whose end was held back are told, by arrival."""
    rows = np.flatnonzero(ledger.rows.held)
    for row in rows[np.argsort(ledger.rows.order[rows])]:
        request: Request = ledger.rows.request[row]
        if request.verdict is None:
            ledger.vacate(int(row))
        else:
            ledger.end(request)
            _tell(ledger, request, request.verdict, outbox, now)


def _tell(ledger: Ledger, request: Request, verdict: Verdict, outbox: Outbox, now: float) -> None:
    """Tokens beyond those that text left of it count as discarded."""
    made = len(request.tokens) - request.prompt_len
    wanted = made if verdict.output_tokens is None else verdict.output_tokens
    ledger.totals.output_tokens -= made - wanted
    ledger.totals.discarded_tokens += made - wanted
    usage = request.usage(now, wanted)
    ledger.statistics.requests.ended(usage)
    outbox.end(Finished(request.handle, Finish(verdict.reason, verdict.stop_token, usage)))
