"""The requests of a run with their measures, sorted into who counts where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from deploy.loadtest.measures import Measures, Outcome, measure
from deploy.loadtest.timeline import NOT_DUE, Run, Timeline


class Request(NamedTuple):
    """A timeline with what it says."""

    timeline: Timeline
    measures: Measures

    @property
    def judged(self) -> bool:
        """Whether its latencies count, in distributions and for goodput. What the plan
        cancels or reads slowly is set before the run, whatever the server does, so that
        leaving it out, however it ended, favours nobody."""
        return self.timeline.left_alone

    @property
    def awaits_first_token(self) -> bool:
        """Whether it had none when the run ended, and might have got one."""
        unfinished = self.measures.outcome is Outcome.UNFINISHED
        return unfinished and self.measures.first_token is None


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """All of a run's requests."""

    warm_up: tuple[Request, ...]
    not_due: tuple[Request, ...]  # of which nobody expected an answer
    counted: tuple[Request, ...]  # all others

    @classmethod
    def of(cls, run: Run) -> Requests:
        warm_up, not_due, counted = [], [], []
        for timeline in run.timelines:
            request = Request(timeline, measure(timeline))
            if timeline.warm_up:
                warm_up.append(request)
            elif timeline.status == NOT_DUE:
                not_due.append(request)
            else:
                counted.append(request)
        return cls(tuple(warm_up), tuple(not_due), tuple(counted))

    @property
    def traffic(self) -> tuple[Request, ...]:
        """All that the server was asked to do."""
        return self.warm_up + self.counted
