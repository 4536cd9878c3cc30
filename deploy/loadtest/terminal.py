"""A summary for the terminal: whole in 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from deploy.loadtest.figures import Figures
from deploy.loadtest.lag import LIMIT_SECONDS
from deploy.loadtest.latencies import TITLES
from deploy.loadtest.notes import notes
from deploy.loadtest.numbers import milliseconds, number, percent, short_milliseconds
from deploy.loadtest.settings_text import settings_lines
from deploy.loadtest.stage_text import stage_load, stage_name
from deploy.loadtest.summary import Summary


def print_summary(summary: Summary, console: Console) -> None:
    console.print(Group(*_sections(summary)), soft_wrap=False)


def _sections(summary: Summary) -> Iterator[RenderableType]:
    yield Text(f"Load test of {summary.started_at}", "bold")
    yield lines(settings_lines(summary.settings))
    if summary.void:
        yield void_panel(str(summary.lag.void_reason))
    yield Text()
    yield _latencies(summary.whole)
    yield lines(_facts(summary))
    yield Text()
    if summary.stages:
        rows = [(stage_name(stage), figures) for stage, figures in summary.stages]
        yield _side_by_side("By stage", "offered", rows)
    if summary.groups:
        yield _side_by_side("By part of the mix", "part", summary.groups.items())
    for note in notes(summary):
        yield hanging("-", note)


def void_panel(reason: str) -> Panel:
    return Panel(Text(f"{reason}."), title="VOID", style="bold red", box=box.HEAVY)


def lines(pairs: Iterable[tuple[str, str]]) -> Table:
    """Names on the left, their values on the right, wrapped there."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(Text(name), Text(value))
    return grid


def hanging(mark: str, text: str) -> Table:
    """A paragraph whose further lines are indented past the mark."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(Text(mark), Text(text))
    return grid


def table(title: str, first: str, *others: str) -> Table:
    """With its title at the left and columns of numbers at the right of the first."""
    made = Table(
        title=Text(title, "bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    made.add_column(first, no_wrap=True)
    for name in others:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def _latencies(figures: Figures) -> RenderableType:
    made = table("Latency, ms", "", "n", "mean", "p50", "p90", "p99", "max")
    for name, title in TITLES.items():
        spread = getattr(figures.latency_seconds, name)
        if not spread.n and name == "first_text":
            continue  # of a server that was asked for ids only
        values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
        made.add_row(title, f"{spread.n:,}", *(milliseconds(value) for value in values))
    return made


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    figures = summary.whole
    counts, rates, lag = figures.requests, figures.per_second, summary.lag.seconds
    yield (
        "requests",
        ", ".join(
            f"{count:,} {what}"
            for count, what in (
                (counts.ok, "ok"),
                (counts.failed, "failed"),
                (counts.unfinished, "unfinished"),
                (counts.cancelled, "cancelled as planned"),
            )
            if count or what in ("ok", "failed")
        ),
    )
    if counts.failures:
        yield "failures", ", ".join(f"{name}: {n:,}" for name, n in counts.failures.items())
    yield (
        "served",
        f"{number(rates.requests)} requests/s ({number(rates.offered_requests)} offered) in a "
        f"window of {summary.window_seconds:.4g} s",
    )
    yield (
        "tokens",
        f"{number(rates.output_tokens)} output tokens/s, {number(rates.total_tokens)} with prompts",
    )
    if (cached := summary.cached).requests:
        yield (
            "prefix cache",
            f"{cached.cached_tokens:,} of {cached.prompt_tokens:,} prompt tokens found "
            f"({percent(cached.share)})",
        )
    if goodput := figures.goodput:
        yield (
            "goodput",
            f"{percent(goodput.share)} ({goodput.good:,} of {goodput.judged:,}), "
            f"{number(goodput.per_second)} requests/s, within {goodput.limits}",
        )
    if knee := _knee(summary):
        yield "knee", knee
    if server := summary.server:
        yield (
            "server",
            f"running {number(server.running_mean)} (max {server.running_max:,}), waiting "
            f"{number(server.waiting_mean)} (max {server.waiting_max:,}), pool "
            f"{percent(server.pool_used_mean)} used (max {percent(server.pool_used_max)}), "
            f"{server.preemptions:,} preemptions",
        )
    yield (
        "tool's lag",
        f"p50 {milliseconds(lag.p50)}, p99 {milliseconds(lag.p99)}, max {milliseconds(lag.max)} "
        f"ms (void above p99 {1000 * LIMIT_SECONDS:g} ms)",
    )


def _knee(summary: Summary) -> str:
    """Empty if the run was no ramp."""
    arrivals = summary.settings.get("arrivals")
    if summary.knee is None:
        is_ramp = isinstance(arrivals, dict) and arrivals.get("kind") == "Ramp"
        return "none: no rate that was tried held" if is_ramp else ""
    highest = max((stage_load(stage) for stage, _ in summary.stages), default=summary.knee)
    if summary.knee >= highest:
        return f"at least {number(summary.knee)} requests/s: every rate that was tried held"
    return f"{number(summary.knee)} requests/s: the highest rate that held"


def _side_by_side(title: str, first: str, rows: Iterable[tuple[str, Figures]]) -> RenderableType:
    made = table(
        f"{title}; latencies p50 / p99 in ms",
        first,
        "n",
        "ok/s",
        "out tok/s",
        "first token",
        "per token",
        "good",
    )
    for name, figures in rows:
        latency, rates = figures.latency_seconds, figures.per_second
        made.add_row(
            Text(name),
            f"{figures.requests.counted:,}",
            number(rates.requests),
            number(rates.output_tokens),
            *(
                f"{short_milliseconds(spread.p50)} / {short_milliseconds(spread.p99)}"
                for spread in (latency.first_token, latency.per_token)
            ),
            percent(figures.goodput.share if figures.goodput else None),
        )
    return made
