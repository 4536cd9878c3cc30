"""`python -m deploy.observe`: the Grafana dashboard's panels as pictures, without Grafana.

Asks Prometheus each query of the dashboard over the last minutes, and writes a picture for each
panel and dashboard.png with all of them. Ends with 0 if every query has data, else with 1 and
the names of those that have none.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from deploy.loadtest.plots.style import picture
from deploy.observe.dashboard import DASHBOARD, Panel, read_panels
from deploy.observe.panel_plot import Answers, draw
from deploy.observe.range_query import Span, ask

_POINTS = 240  # of a line, at most


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        return _plot(given)
    except (OSError, ValueError) as error:
        print(f"observe: {error}", file=sys.stderr)
        return 1


def _plot(given: argparse.Namespace) -> int:
    seconds = 60 * given.minutes
    if not seconds >= given.scrape_interval > 0:
        raise ValueError(
            f"--minutes {given.minutes:g} and --scrape-interval {given.scrape_interval:g} s must "
            "be positive, the interval the shorter"
        )
    now = time.time()
    span = Span(now - seconds, now, max(given.scrape_interval, seconds / _POINTS))
    rates = span.rate_interval(given.scrape_interval)
    answers = [_answers(panel, given.prometheus, span, rates) for panel in read_panels()]
    given.out.mkdir(parents=True, exist_ok=True)
    _write(answers, span, _subtitle(given.prometheus, span, rates), given.out)
    print(f"{len(answers)} panels and dashboard.png are in {given.out}")
    lacking = [f"{one.panel.title}: {legend}" for one in answers for legend in one.lacking]
    for name in lacking:
        print(f"no data: {name}", file=sys.stderr)
    return int(bool(lacking))


def _answers(panel: Panel, url: str, span: Span, rates: float) -> Answers:
    series = (tuple(ask(url, query.over(rates), span)) for query in panel.queries)
    return Answers(panel, tuple(series))


def _subtitle(url: str, span: Span, rates: float) -> str:
    start, end = (datetime.fromtimestamp(at, UTC) for at in (span.start, span.end))
    return (
        f"{url}, {start:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} UTC; a point every {span.step:g} s, "
        f"rates over {rates:g} s"
    )


def _write(answers: list[Answers], span: Span, subtitle: str, folder: Path) -> None:
    for number, one in enumerate(answers, 1):
        slug = re.sub(r"\W+", "-", one.panel.title.lower())
        path = folder / f"{number:02d}-{slug}.png"
        with picture(path, one.panel.title, subtitle, None, 1, size=(9, 4.2)) as (axes,):
            draw(axes, one, span)
            axes.set_title("")
    rows = (len(answers) + 1) // 2
    size = (15, 3.8 * rows)
    path = folder / "dashboard.png"
    with picture(path, "nanoserve", subtitle, None, rows, 2, size=size) as panels:
        for axes, one in zip(panels, answers, strict=False):
            draw(axes, one, span)
        for axes in panels[len(answers) :]:
            axes.set_axis_off()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.observe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"The queries are those of {DASHBOARD.name}.",
    )
    add = parser.add_argument
    add("--prometheus", default="http://127.0.0.1:9090", metavar="URL", help="default: %(default)s")
    add("--minutes", type=float, default=30.0, help="how far back (default: %(default)g)")
    scrapes = "seconds between scrapes, as in prometheus.yml (default: %(default)g)"
    add("--scrape-interval", type=float, default=5.0, metavar="SECONDS", help=scrapes)
    add("--out", type=Path, default=Path("panels"), metavar="DIR", help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
