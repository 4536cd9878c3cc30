"""Two runs side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from deploy.loadtest.figures import Figures
from deploy.loadtest.latencies import TITLES
from deploy.loadtest.settings_text import comparable, flatten
from deploy.loadtest.summary import Summary

FORMAT = "nanoserve-loadtest-comparison-1"
_PERCENTILES = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of both runs."""

    name: str  # as in the report's JSON, joined by dots
    title: str
    unit: str  # "s", "1/s", "share", "requests" or "samples"
    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        """b / a; None if either is missing or a is 0, and between numbers of samples."""
        if not self.a or self.b is None or self.unit == "samples":
            return None
        return self.b / self.a


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of run `b` against run `a`."""

    a: Summary
    b: Summary

    @property
    def latencies(self) -> tuple[Line, ...]:
        """Less is better."""
        return tuple(_latency_lines(self.a.whole, self.b.whole))

    @property
    def served(self) -> tuple[Line, ...]:
        """More is better."""
        lines = tuple(_served_lines(self.a.whole, self.b.whole))
        if self.a.knee is None and self.b.knee is None:
            return lines
        return (*lines, Line("knee", "knee, requests/s", "1/s", self.a.knee, self.b.knee))

    @property
    def lost(self) -> tuple[Line, ...]:
        """Less is better."""
        a, b = self.a.whole.requests, self.b.whole.requests
        return tuple(
            Line(f"requests.{name}", name, "requests", getattr(a, name), getattr(b, name))
            for name in ("failed", "unfinished")
        )

    @property
    def different_settings(self) -> dict[str, tuple[Any, Any]]:
        """By dotted name, the values of a and b; None where a run has no such setting."""
        a, b = (flatten(comparable(run.settings)) for run in (self.a, self.b))
        names = dict.fromkeys([*a, *b])
        return {n: (a.get(n), b.get(n)) for n in names if a.get(n) != b.get(n)}

    def to_json(self) -> dict[str, Any]:
        """JSON values, with the reports of both runs whole."""
        lines = (*self.latencies, *self.served, *self.lost)
        return {
            "format": FORMAT,
            "void": self.a.void or self.b.void,
            "different_settings": {n: list(v) for n, v in self.different_settings.items()},
            "figures": [asdict(line) | {"ratio": line.ratio} for line in lines],
            "a": self.a.to_json(),
            "b": self.b.to_json(),
        }


def _latency_lines(a: Figures, b: Figures) -> Iterator[Line]:
    for latency, title in TITLES.items():
        spreads = [getattr(figures.latency_seconds, latency) for figures in (a, b)]
        ns = [spread.n for spread in spreads]
        yield Line(f"latency_seconds.{latency}.n", f"{title}, n", "samples", *ns)
        for name in _PERCENTILES:
            values = [getattr(spread, name) for spread in spreads]
            yield Line(f"latency_seconds.{latency}.{name}", f"{title}, {name}", "s", *values)


def _served_lines(a: Figures, b: Figures) -> Iterator[Line]:
    titles = {
        "requests": "requests/s",
        "output_tokens": "output tokens/s",
        "total_tokens": "total tokens/s",
    }
    for name, title in titles.items():
        values = [getattr(figures.per_second, name) for figures in (a, b)]
        yield Line(f"per_second.{name}", title, "1/s", *values)
    if a.goodput and b.goodput:
        yield Line("goodput.share", "goodput", "share", a.goodput.share, b.goodput.share)
        rates = (a.goodput.per_second, b.goodput.per_second)
        yield Line("goodput.per_second", "good requests/s", "1/s", *rates)
