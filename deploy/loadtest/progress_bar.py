"""Tells a waiting person how far a run is: a bar on a terminal, a line now and then
elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from deploy.loadtest.arrivals import Ramp
from deploy.loadtest.orders import Counts
from deploy.loadtest.plan import LoadPlan
from deploy.local import progress as lines

_LINE_SECONDS = 5.0


class ProgressBar:
    """A context manager; `show` is what run_load calls."""

    def __init__(self, plan: LoadPlan, console: Console) -> None:
        self._plan = plan
        columns = ("[bold]{task.description}", "{task.fields[counts]}")
        self._bar = Progress(
            TextColumn(columns[0]),
            BarColumn(),
            TextColumn(columns[1]),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=5,
        )
        self._task = self._bar.add_task("connecting", total=None, counts="")
        self._lines = None if console.is_terminal else lines.Progress("loadtest", _LINE_SECONDS)
        self._what: str | None = None
        self._started = 0.0

    def __enter__(self) -> Self:
        if self._lines is None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, what: str, counts: Counts) -> None:
        if what != self._what:
            self._what, self._started = what, time.monotonic()
        told = f"{counts.ended:,} ended, {counts.sent - counts.ended:,} open"
        told += f", {counts.failed:,} failed" if counts.failed else ""
        if self._lines is not None:
            self._lines.show(f"{what}, {told}".removeprefix(", "))
            return
        total, done = self._extent(what, counts)
        self._bar.update(
            self._task, description=what or "load", total=total, completed=done, counts=told
        )

    def _extent(self, what: str, counts: Counts) -> tuple[float | None, float]:
        """All, and what is done, of requests or of seconds; whichever is nearer its end."""
        if what == "warm-up":
            return self._plan.warm_up_requests, counts.ended
        elapsed = time.monotonic() - self._started
        if isinstance(self._plan.arrivals, Ramp):
            seconds: float | None = self._plan.arrivals.stage_seconds
            requests = None
        else:
            seconds, requests = self._plan.seconds, self._plan.requests
        shares = [min(1.0, elapsed / seconds)] if seconds else []
        shares += [counts.ended / requests] if requests else []
        return (1.0, max(shares)) if shares else (None, 0.0)
