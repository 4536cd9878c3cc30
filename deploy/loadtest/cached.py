"""How much of the prompts the server did not have to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from deploy.loadtest.measures import Outcome
from deploy.loadtest.requests import Request


@dataclass(frozen=True, slots=True)
class CachedPrompts:
    """Over the counted requests that ended well and whose usage told it."""

    requests: int
    prompt_tokens: int
    cached_tokens: int  # of those, found in the server's prefix cache
    share: float | None  # None without requests

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        told = [
            (timeline.prompt_tokens, timeline.cached_tokens)
            for timeline, measures in requests
            if measures.outcome is Outcome.OK and timeline.cached_tokens is not None
        ]
        prompt, cached = sum(p for p, _ in told), sum(c for _, c in told)
        return cls(len(told), prompt, cached, cached / prompt if prompt else None)
