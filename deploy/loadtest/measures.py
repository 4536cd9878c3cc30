"""What one request's timeline says: its outcome and its latencies.

Times count from the planned arrival, not from the send, so that a request that had to
queue anywhere, be it in the tool, counts its wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from deploy.loadtest.timeline import NOT_DUE, NOT_SENT, UNFINISHED, Timeline

# The status of a failure that the server took for a success.
NO_TOKENS = "OK without a token"


class Outcome(StrEnum):
    """How a request ended, for the tool."""

    OK = "ok"
    FAILED = "failed"
    UNFINISHED = "unfinished"  # sent or due, and without an end when the run ended
    CANCELLED = "cancelled"  # because the plan said so


@dataclass(frozen=True, slots=True, eq=False)
class Measures:
    """Seconds; None where the request gives no sample."""

    outcome: Outcome
    status: str  # the timeline's, or NO_TOKENS
    tokens: int  # ids received
    first_token: float | None  # to the first message that carries an id
    first_text: float | None  # to the first message that carries text
    gaps: NDArray[np.float64]  # [ids after the first message's], one for each id
    per_token: float | None  # mean of `gaps`
    end_to_end: float | None  # to the end; only with OK


def measure(timeline: Timeline) -> Measures:
    """The arithmetic of a request, over the messages that carry ids: several ids in one
    message share the time since the message before, so the first message's ids have no
    gap. All ids in one message, or one id in all: no gap and no per-token time."""
    outcome, status = _outcome(timeline)
    with_ids = timeline.token_counts > 0
    times, counts = timeline.times[with_ids], timeline.token_counts[with_ids]
    text_times = timeline.times[timeline.has_text]
    has_text = times.size and text_times.size  # text without any id is a failure
    gaps = np.repeat(np.diff(times) / counts[1:], counts[1:])
    return Measures(
        outcome=outcome,
        status=status,
        tokens=int(counts.sum()),
        first_token=float(times[0] - timeline.planned) if times.size else None,
        first_text=float(text_times[0] - timeline.planned) if has_text else None,
        gaps=gaps,
        per_token=float((times[-1] - times[0]) / gaps.size) if gaps.size else None,
        end_to_end=timeline.ended - timeline.planned if outcome is Outcome.OK else None,
    )


def _outcome(timeline: Timeline) -> tuple[Outcome, str]:
    if timeline.cancelled:
        return Outcome.CANCELLED, timeline.status
    if timeline.status in (UNFINISHED, NOT_SENT, NOT_DUE):
        return Outcome.UNFINISHED, timeline.status
    if timeline.status != "OK":
        return Outcome.FAILED, timeline.status
    if not timeline.token_counts.any():
        return Outcome.FAILED, NO_TOKENS
    return Outcome.OK, timeline.status
