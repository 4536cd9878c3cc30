"""Whether the ids that came are as many as the server says it sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from deploy.loadtest.measures import Outcome
from deploy.loadtest.requests import Request

_NAMED = 20


@dataclass(frozen=True, slots=True)
class UsageCheck:
    """Over the counted requests that ended well."""

    checked: int  # requests whose end told a usage
    untold: int  # requests whose end told none
    wrong: int  # of those checked
    first_wrong: tuple[str, ...]  # ids of the first of them

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        ok = [request for request in requests if request.measures.outcome is Outcome.OK]
        told = [request for request in ok if request.timeline.output_tokens is not None]
        wrong = [
            timeline.request_id or f"number {timeline.index}"
            for timeline, measures in told
            if timeline.output_tokens != measures.tokens
        ]
        return cls(len(told), len(ok) - len(told), len(wrong), tuple(wrong[:_NAMED]))
