"""A run as CSV: a line for each request, and the figures."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deploy.loadtest.compare import Comparison
from deploy.loadtest.figures import Figures
from deploy.loadtest.goodput import Limits
from deploy.loadtest.measures import measure
from deploy.loadtest.requests import Request
from deploy.loadtest.settings_text import flatten
from deploy.loadtest.stage_text import stage_load
from deploy.loadtest.summary import Summary
from deploy.loadtest.timeline import NOT_DUE, Run, Timeline


def write_requests(run: Run, limits: Limits, path: Path) -> None:
    """A line for every planned request, warm-up too. Times are in seconds: planned, sent
    and ended from the run's start, the others from planned. Raises OSError."""
    _write([_request_row(timeline, limits) for timeline in run.timelines], path)


def write_summary(summary: Summary, path: Path) -> None:
    """A line for the run, then one for each stage and each part of the mix. Raises
    OSError."""
    _write(list(_summary_rows(summary)), path)


def write_comparison(comparison: Comparison, path: Path) -> None:
    """A line for each figure, with both runs' values and their ratio. Raises OSError."""
    figures = (*comparison.latencies, *comparison.served, *comparison.lost)
    _write([asdict(figure) | {"ratio": figure.ratio} for figure in figures], path)


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    # A column that only some lines have, such as a rare failure's, is empty in the others.
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        # Nanoseconds: more digits are noise.
        writer.writerows(
            {n: round(v, 9) if isinstance(v, float) else v for n, v in row.items()} for row in rows
        )


def _request_row(timeline: Timeline, limits: Limits) -> dict[str, Any]:
    measures = measure(timeline)
    left_out = timeline.warm_up or timeline.status == NOT_DUE
    judged = Request(timeline, measures).judged and not left_out
    return {
        "index": timeline.index,
        "request_id": timeline.request_id,
        "group": timeline.group,
        "stage": timeline.stage,
        "warm_up": timeline.warm_up,
        "slow_reader": timeline.slow_reader,
        "outcome": measures.outcome.value,
        "status": measures.status,
        "planned": timeline.planned,
        "sent": timeline.sent,
        "ended": timeline.ended,
        "first_token": measures.first_token,
        "first_text": measures.first_text,
        "per_token": measures.per_token,
        "longest_gap": float(measures.gaps.max()) if measures.gaps.size else None,
        "end_to_end": measures.end_to_end,
        "prompt_tokens": timeline.prompt_tokens,
        "cached_tokens": timeline.cached_tokens,
        "output_tokens": measures.tokens,
        "output_tokens_of_usage": timeline.output_tokens,
        "within_limits": limits.met_by(measures) if limits and judged else None,
        "detail": timeline.detail,
    }


def _summary_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    yield _figures_row(summary, "run", "", summary.whole)
    for stage, figures in summary.stages:
        yield _figures_row(summary, "stage", f"{stage_load(stage):g}", figures)
    for name, figures in summary.groups.items():
        yield _figures_row(summary, "group", name, figures)


def _figures_row(summary: Summary, scope: str, name: str, figures: Figures) -> dict[str, Any]:
    return {"scope": scope, "name": name, "void": summary.void} | flatten(asdict(figures))
