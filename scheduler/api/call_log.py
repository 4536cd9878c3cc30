"""One line for each call that has ended."""

from __future__ import annotations

import logging

from scheduler.api.call_record import CallRecord

log = logging.getLogger(__name__)

# Of an id: what a valid one may have. One that was refused may be of any size.
_LONGEST_ID = 128


def log_call(record: CallRecord) -> None:
    """Its values go to the log's handler as fields, for it to write in its format."""
    if log.isEnabledFor(logging.INFO):
        log.info("request ended", extra={"fields": fields(record)})


def fields(record: CallRecord) -> dict[str, object]:
    """The record by name, without what is not known. Times in milliseconds."""
    result: dict[str, object] = {
        "request_id": record.request_id[:_LONGEST_ID],
        "caller": record.caller or None,
        "outcome": record.outcome,
        "status": record.status,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "queue_ms": _milliseconds(record.queue_seconds),
        "first_token_ms": _milliseconds(record.first_token_seconds),
        "token_ms": _milliseconds(record.token_seconds),
        "total_ms": _milliseconds(record.total_seconds),
        "preemptions": record.preemptions,
        "recomputed_tokens": record.recomputed_tokens,
        "error": record.error or None,
        "trace_id": record.trace_id or None,
        "prompt": record.prompt,
        "output": record.output,
    }
    return {name: value for name, value in result.items() if value is not None}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)
