"""What was served per second of the measuring window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from deploy.loadtest.measures import Outcome
from deploy.loadtest.requests import Request
from deploy.loadtest.timeline import Stage


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second of the measuring window, which is all `stages` together.

    An output token counts when the message with its id comes, a prompt's tokens when the
    prompt's first output token comes (it has been computed by then), a request when it
    ends well: each only if that moment lies within the window. Whose they are does not
    matter, so that requests that reach into the window from the warm-up, or out of it,
    count with the part that was served inside; those of failed requests never count,
    nobody has use for them. Total tokens are prompt tokens plus output tokens."""

    offered_requests: float  # planned within the window, warm-up left out
    requests: float
    output_tokens: float
    total_tokens: float

    @classmethod
    def of(cls, traffic: Sequence[Request], stages: Sequence[Stage]) -> Self:
        seconds = sum(stage.seconds for stage in stages)
        served = [r for r in traffic if r.measures.outcome is not Outcome.FAILED]
        ended = [r.timeline.ended for r in served if r.measures.outcome is Outcome.OK]
        planned = [r.timeline.planned for r in traffic if not r.timeline.warm_up]
        output = _output_tokens(served, stages)
        counts = (
            # A request planned for the very start belongs to the window.
            _inside(planned, stages, closed_at_start=True).sum(),
            _inside(ended, stages).sum(),
            output,
            output + _prompt_tokens(served, stages),
        )
        return cls(*(float(count) / seconds if seconds > 0 else 0.0 for count in counts))


def count_inside(times: Sequence[float], stages: Sequence[Stage]) -> int:
    """How many of `times` lie within a stage: after its start, up to its end."""
    return int(_inside(times, stages).sum())


def _output_tokens(requests: Sequence[Request], stages: Sequence[Stage]) -> int:
    if not requests:
        return 0
    times = np.concatenate([request.timeline.times for request in requests])
    counts = np.concatenate([request.timeline.token_counts for request in requests])
    return int(counts[_inside(times, stages)].sum())


def _prompt_tokens(requests: Sequence[Request], stages: Sequence[Stage]) -> int:
    started = [r for r in requests if r.measures.first_token is not None]
    firsts = [r.timeline.times[r.timeline.token_counts > 0][0] for r in started]
    tokens = np.array([r.timeline.prompt_tokens for r in started], np.int64)
    return int(tokens[_inside(firsts, stages)].sum())


def _inside(
    times: Sequence[float] | NDArray[np.float64],
    stages: Sequence[Stage],
    closed_at_start: bool = False,
) -> NDArray[np.bool_]:
    """[times] whether each lies within a stage. Half-open, so that what happens where two
    stages meet counts once; a run's last token, at its very end, counts."""
    values = np.asarray(times, np.float64)
    inside = np.zeros(values.shape, np.bool_)
    for stage in stages:
        if closed_at_start:
            inside |= (values >= stage.start) & (values < stage.end)
        else:
            inside |= (values > stage.start) & (values <= stage.end)
    return inside
