"""Runs a dashboard: on a terminal as one picture that changes, elsewhere as one after another."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from rich.console import Console, Group
from rich.live import Live

from nanoserve.access import Access
from nanoserve.cli.connection import client_of
from nanoserve.cli.dashboard.feed import Away, Feed
from nanoserve.cli.dashboard.glyphs import glyphs_for
from nanoserve.cli.dashboard.history import History
from nanoserve.cli.dashboard.screen import View, picture
from nanoserve.cli.dashboard.size import Size
from nanoserve.cli.dashboard.wakeups import Wakeups

# Seconds between two looks at the clock while no status comes.
TICK_SECONDS = 1.0
# Statuses that are late by so many intervals are worth a word.
LATE_INTERVALS = 3.0
DEFAULT_INTERVAL = 1.0


def show(access: Access, interval: float | None, once: bool) -> None:
    """Until q, Ctrl-C or SIGTERM, or with `once` one picture. Raises NanoserveError if no
    status ever came."""
    console = Console(highlight=False)
    # Colours may be forced upon a pipe; a picture that changes needs a terminal.
    live = not once and sys.stdout.isatty() and not console.is_dumb_terminal
    with (
        Wakeups(keys=live and sys.stdin.isatty()) as wakeups,
        Feed(lambda: client_of(access), interval, wakeups.notify) as feed,
    ):
        view = View(access.address, History(), glyphs_for(console.encoding))
        shown = Shown(view, interval or DEFAULT_INTERVAL, feed)
        if live:
            _show_live(console, shown, wakeups)
        else:
            _print(console, shown, wakeups, once)


class Shown:
    """What the events so far come to."""

    def __init__(self, view: View, interval: float, feed: Feed) -> None:
        self._view = view
        self._interval = interval
        self._feed = feed
        self._away: Away | None = None
        self._news_at = time.monotonic()

    def take(self) -> int:
        """Takes all events that have come; how many. Raises NanoserveError if the first
        is one."""
        count = 0
        while not self._feed.events.empty():
            event = self._feed.events.get()
            count += 1
            self._news_at = time.monotonic()
            self._away = event if isinstance(event, Away) else None
            if not isinstance(event, Away):
                self._view.history.add(event)
            elif event.error is not None and self._view.history.status is None:
                raise event.error
        return count

    @property
    def history(self) -> History:
        return self._view.history

    @property
    def view(self) -> View:
        return replace(self._view, trouble=self._trouble())

    def _trouble(self) -> str:
        seconds = time.monotonic() - self._news_at
        if self._away is not None:
            return f"{_why(self._away, self._view.address)}; trying again"
        if self.history.status is not None and seconds > LATE_INTERVALS * self._interval + 1:
            return f"no status for {seconds:.0f} s"
        return ""


def _why(away: Away, address: str) -> str:
    if away.error is None:
        return "the server has drained"
    if away.error.unreachable:
        return f"no server answers at {address}"
    return f"the server is away: {away.error}"


def _show_live(console: Console, shown: Shown, wakeups: Wakeups) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while not wakeups.quitting:
            shown.take()
            size = Size(console.width, console.height)
            view = replace(shown.view, hint="q quits")
            live.update(Group(*picture(view, size)), refresh=True)
            wakeups.wait(TICK_SECONDS)


def _print(console: Console, shown: Shown, wakeups: Wakeups, once: bool) -> None:
    """One picture for each status. The first waits for the second status: a rate takes two."""
    while not wakeups.quitting:
        view = shown.view if shown.take() else None
        if view is not None and (shown.history.output_rates or view.trouble):
            console.print(*picture(view, Size(console.width, None)), sep="\n")
            if once:
                return
            console.print()
        wakeups.wait(TICK_SECONDS)
