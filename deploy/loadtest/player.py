"""Waits for one request's end, and cancels it if the plan or the run's end says so."""

from __future__ import annotations

import asyncio

from deploy.loadtest.record import Record
from deploy.loadtest.target import Exchange, Failed
from deploy.loadtest.timeline import NOT_SENT, UNFINISHED

# When a request is cancelled that the plan gives no token to: late enough to have reached
# the server, early enough to find it waiting.
_CANCEL_AT_ONCE = 0.005  # seconds
# The server is to end what is late; the tool does so only if that fails.
_GRACE = 5.0  # seconds


async def play(exchange: Exchange, record: Record, timeout: float) -> None:
    """Returns once the record has ended. Cancelling this gives the request up."""
    at_once = record.request.cancel_after == 0
    try:
        async with asyncio.timeout(_CANCEL_AT_ONCE if at_once else timeout + _GRACE):
            await exchange.wait()
        record.end("OK")
    except Failed as failure:
        record.end(failure.status, failure.detail)
    except TimeoutError:
        if at_once:
            _end_cancelled(record)
        else:
            record.end("DEADLINE_EXCEEDED", f"the server has not ended it after {timeout:g} s")
    except asyncio.CancelledError:
        give_up(record)
        raise
    finally:
        exchange.cancel()


def give_up(record: Record) -> None:
    """Ends it with the run."""
    if record.sent is None:
        record.end(NOT_SENT, "the run was over")
    else:
        record.end(UNFINISHED, "the run was over")


def _end_cancelled(record: Record) -> None:
    if record.sent is None:
        record.end("CANCELLED", "before it was on its way", cancelled=True)
    else:
        record.end("CANCELLED", cancelled=True)
