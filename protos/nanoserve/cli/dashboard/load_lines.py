"""How loaded the server is, as lines of a label and figures."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from nanoserve.cli.dashboard.glyphs import Glyphs
from nanoserve.cli.dashboard.history import History
from nanoserve.cli.dashboard.size import Size
from nanoserve.cli.figures import latency, rate, share
from nanoserve.latency import LatencyHistogram
from nanoserve.status import ServerStatus

LABEL_WIDTH = 13
RATE_WIDTH = 20
PEAK_WIDTH = 16
PERCENTILES = (0.5, 0.9, 0.99)


def labelled(name: str) -> Text:
    """The begin of a line."""
    return Text(f"{name:<{LABEL_WIDTH}}", no_wrap=True)


def rate_lines(history: History, size: Size, glyphs: Glyphs) -> list[Text]:
    lines = []
    for name, rates, colour in (
        ("output", history.output_rates, "green"),
        ("prompt", history.prompt_rates, "cyan"),
    ):
        label = f"{rate(rates[-1] if rates else None)} tokens/s"
        peak = f"peak {rate(max(rates, default=None))}".rjust(PEAK_WIDTH)
        width = max(0, size.width - LABEL_WIDTH - RATE_WIDTH - PEAK_WIDTH)
        shown = list(rates)[-width:] if width else []
        for number, drawn in enumerate(curve(shown, width, size.curve_height, glyphs)):
            line = labelled(name if number == 0 else "")
            line.append(f"{label if number == 0 else '':<{RATE_WIDTH}}", "bold")
            line.append(drawn, colour)
            line.append(peak if number == 0 else "", "bright_black")
            lines.append(line)
    return lines


def curve(values: Sequence[float], width: int, height: int, glyphs: Glyphs) -> list[str]:
    """`values` as a curve of `height` lines that ends at the right; its highest level is their
    largest. Nothing is a blank, and anything at all is a level."""
    top, levels = max(values, default=0.0), glyphs.levels
    steps = height * len(levels)
    heights = [max(1, round(value / top * steps)) if value > 0 else 0 for value in values]
    lines = []
    for floor in range((height - 1) * len(levels), -1, -len(levels)):
        filled = [min(len(levels), max(0, of - floor)) for of in heights]
        drawn = "".join(levels[count - 1] if count else " " for count in filled)
        lines.append(drawn.rjust(width))
    return lines


def latency_lines(history: History) -> list[Text]:
    over = _window(history)
    return [
        _latency_line("first token", history.first_token, over),
        _latency_line("inter-token", history.inter_token, over),
    ]


def _window(history: History) -> str:
    seconds = history.window_seconds
    return f"last {seconds:.0f} s" if seconds else "since the start"


def _latency_line(name: str, of: LatencyHistogram | None, over: str) -> Text:
    line = labelled(name)
    for part in PERCENTILES:
        line.append(f"p{100 * part:.0f} ")
        line.append(f"{latency(of.percentile(part) if of else None):<8}", "bold")
    line.append("mean ")
    line.append(f"{latency(of.mean if of else None):<8}", "bold")
    line.append(f" {over}", "bright_black")
    return line


def request_line(history: History, status: ServerStatus, glyphs: Glyphs) -> Text:
    line = labelled("requests")
    line.append(f"{status.running_requests:,}", "bold")
    most = f" of {status.max_rows:,}" if status.max_rows else ""
    line.append(f"{most} running {glyphs.dot} ")
    waiting = status.waiting_requests
    line.append(f"{waiting:,}", "bold yellow" if waiting else "bold")
    line.append(f" waiting {glyphs.dot} {rate(history.step_rate)} steps/s ")
    line.append(f"{glyphs.dot} {status.preemptions:,} preempted")
    if status.worker_restarts:
        line.append(f" {glyphs.dot} {status.worker_restarts:,} worker restarts", "yellow")
    return line


def prefix_line(history: History, status: ServerStatus, glyphs: Glyphs) -> Text:
    """What the prefix cache spares."""
    found, sought = history.prefix_tokens
    line = labelled("prefix cache")
    line.append(share(found, sought) if sought else "-", "bold")
    line.append(f" of {sought:,} prompt tokens found {glyphs.dot} ")
    line.append(f"{status.cached_blocks:,}", "bold")
    line.append(" blocks kept")
    line.append(f"  {_window(history)}", "bright_black")
    return line
