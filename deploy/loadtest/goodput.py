"""Goodput: how many requests were served within limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from deploy.loadtest.measures import Measures, Outcome

_ROUNDING = 1e-6  # ms: differences of float seconds are not exact, and no clock is finer


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a good request may take, in milliseconds; None is no limit."""

    ttft: float | None = None  # time to first token
    tpot: float | None = None  # time per output token
    gap: float | None = None  # the longest gap between two tokens
    e2e: float | None = None  # end to end

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """From words such as "ttft:500". Raises ValueError naming the word at fault."""
        names = [field.name for field in fields(cls)]
        form = f"write NAME:MILLISECONDS with one of {', '.join(names)}"
        values: dict[str, float] = {}
        for word in words:
            name, _, number = word.partition(":")
            if name not in names:
                raise ValueError(f"goodput limit {word!r}: {form}")
            if name in values:
                raise ValueError(f"goodput limit {name!r} is given twice")
            values[name] = _milliseconds(word, number)
        return cls(**values)

    @classmethod
    def of_settings(cls, values: Mapping[str, Any] | None) -> Self:
        """From a saved run's, where they are a mapping that says its kind."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in (values or {}).items() if name in known})

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def __str__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self)]
        return ", ".join(f"{name} <= {value:g} ms" for name, value in given if value is not None)

    def met_by(self, request: Measures) -> bool:
        """Whether it ended well and within all limits. A request without a second
        message has no time per token that could pass a limit."""
        longest = float(request.gaps.max()) if request.gaps.size else None
        pairs = (
            (request.first_token, self.ttft),
            (request.per_token, self.tpot),
            (longest, self.gap),
            (request.end_to_end, self.e2e),
        )
        return request.outcome is Outcome.OK and all(
            seconds is None or limit is None or 1000 * seconds <= limit + _ROUNDING
            for seconds, limit in pairs
        )


def _milliseconds(word: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf):
        raise ValueError(
            f"goodput limit {word!r}: the limit must be a number of milliseconds above 0"
        )
    return value
