"""The ramp that finds the knee: the highest rate that the server holds.

Stages of one rate each follow one another, every one with the server drained before it. The
rate is multiplied by `factor` until a stage does not hold (or, if the first does not,
divided until one does); then the interval between the highest rate that held and the lowest
that did not is halved `bisections` times, geometrically. The knee is the highest that held.

A stage holds if at least 95 % of the requests that were planned up to `allowance` before its
end had ended well by its end, so that the queue did not grow with time; the allowance is
twice the p99 of the first held stage's end-to-end times, at most half a stage. With goodput
limits at least 95 % of the stage's requests must be within them as well. What the plan
cancels counts as ended well, and for goodput not at all. A stage with no request to judge by,
and one that the plan's bounds would cut short, end the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from deploy.loadtest.arrivals import MOST_STAGES, Ramp
from deploy.loadtest.goodput import Limits
from deploy.loadtest.measures import measure
from deploy.loadtest.timeline import NOT_DUE, Stage, Timeline

SHARE = 0.95


def find_knee(ramp: Ramp, holds: Callable[[float], bool | None]) -> float | None:
    """`holds(rate)` runs a stage; None from it ends the search. None: no rate held."""
    held, broken = None, None
    rate = ramp.first
    for _ in range(MOST_STAGES):
        verdict = holds(rate)
        if verdict is None:
            return held
        held, broken = (rate, broken) if verdict else (held, rate)
        if held is not None and broken is not None:
            break
        rate = rate * ramp.factor if verdict else rate / ramp.factor
    if held is None or broken is None:
        return held
    for _ in range(ramp.bisections):
        rate = math.sqrt(held * broken)
        verdict = holds(rate)
        if verdict is None:
            break
        held, broken = (rate, broken) if verdict else (held, rate)
    return held


class Judge:
    """Says which stages hold."""

    def __init__(self, ramp: Ramp, limits: Limits | None) -> None:
        self._limits = limits
        self._allowance = self._most_allowance = ramp.stage_seconds / 2
        self._has_base = False

    def holds(self, stage: Stage, timelines: Sequence[Timeline]) -> bool | None:
        """`timelines` are the stage's. None if there is no request to judge by."""
        timelines = [t for t in timelines if t.status != NOT_DUE]
        due = [t for t in timelines if t.planned <= stage.end - self._allowance]
        if not due:
            return None
        ended = [(t.status == "OK" or t.cancelled) and t.ended <= stage.end for t in due]
        if sum(ended) < SHARE * len(due) or not self._is_good(timelines):
            return False
        if not self._has_base:
            self._has_base = True
            times = [t.ended - t.planned for t in timelines if t.status == "OK"]
            if times:
                p99 = float(np.percentile(times, 99))
                self._allowance = min(2 * p99, self._most_allowance)
        return True

    def _is_good(self, timelines: Sequence[Timeline]) -> bool:
        if not self._limits:
            return True
        judged = [t for t in timelines if t.left_alone]
        return sum(self._limits.met_by(measure(t)) for t in judged) >= SHARE * len(judged)
