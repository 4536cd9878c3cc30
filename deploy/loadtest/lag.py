"""The tool's own lag: whether a run measured the server or the tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from deploy.loadtest.percentiles import Distribution
from deploy.loadtest.requests import Requests
from deploy.loadtest.timeline import NOT_SENT, Run

LIMIT_SECONDS = 0.005  # of the lag's p99


@dataclass(frozen=True, slots=True)
class Lag:
    """From a request's planned time to its send."""

    seconds: Distribution
    void_reason: str | None  # why the run does not count; None if it does

    @classmethod
    def of(cls, run: Run, requests: Requests) -> Self:
        """A request that was due and never sent lags at least by its age."""
        unsent = [r.timeline for r in requests.counted if r.timeline.status == NOT_SENT]
        ages = [timeline.ended - timeline.planned for timeline in unsent]
        seconds = Distribution.of(np.concatenate([run.lags, ages]))
        return cls(seconds, _void_reason(seconds))


def _void_reason(lag: Distribution) -> str | None:
    if lag.p99 is None:
        return "no measured request was due: nothing was measured"
    if lag.p99 > LIMIT_SECONDS:
        return (
            f"the load tool lagged: p99 {1000 * lag.p99:,.1f} ms, limit {1000 * LIMIT_SECONDS:g} "
            "ms; try --realtime, more processes or another machine"
        )
    return None
