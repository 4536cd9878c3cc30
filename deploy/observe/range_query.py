"""Queries over a span of time, answered by Prometheus."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

import numpy as np

_TIMEOUT = 30.0  # seconds for an answer


@dataclass(frozen=True, slots=True)
class Span:
    """Points of time from `start` to `end`, Unix seconds, every `step` seconds."""

    start: float
    end: float
    step: float

    @property
    def times(self) -> np.ndarray:
        """[points] float64."""
        return self.start + self.step * np.arange(int((self.end - self.start) / self.step) + 1)

    def rate_interval(self, scrape_interval: float) -> float:
        """Grafana's $__rate_interval, in seconds: four scrapes at least, and no gap between
        points (https://grafana.com/docs/grafana/latest/datasources/prometheus/template-variables)."""
        return max(self.step + scrape_interval, 4 * scrape_interval)


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """`values` [points] float64 belong to the span's times; NaN where there is none."""

    labels: dict[str, str]
    values: np.ndarray

    @property
    def has_data(self) -> bool:
        return bool(np.isfinite(self.values).any())


def ask(url: str, expression: str, span: Span) -> list[Series]:
    """All series of an expression. Raises ValueError for what Prometheus refuses, and OSError if
    it cannot be reached."""
    times = span.times
    asked = {"query": expression, "start": span.start, "end": times[-1], "step": span.step}
    query = f"{url.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
    try:
        with urllib.request.urlopen(query, timeout=_TIMEOUT) as response:
            result = json.load(response)["data"]["result"]
    except urllib.error.HTTPError as error:
        raise ValueError(f"{expression}: {error.read().decode(errors='replace')}") from None
    return [Series(one["metric"], _on(times, span, one["values"])) for one in result]


def _on(times: np.ndarray, span: Span, pairs: list[tuple[float, str]]) -> np.ndarray:
    values = np.full(len(times), np.nan)
    for time, value in pairs:
        values[round((time - span.start) / span.step)] = float(value)
    values[~np.isfinite(values)] = np.nan
    return values
