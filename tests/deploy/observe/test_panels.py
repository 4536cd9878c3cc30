"""The dashboard's panels as pictures: what is asked, how values and legends are shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from matplotlib.figure import Figure

from deploy.observe.__main__ import main
from deploy.observe.dashboard import Panel, Query, read_panels
from deploy.observe.panel_plot import Answers, draw
from deploy.observe.range_query import Series, Span, ask
from deploy.observe.units import scale

SPAN = Span(1000.0, 1020.0, 5.0)


class Source(ThreadingHTTPServer):
    """Answers as Prometheus does: values by expression; a 400 for what is not among them."""

    def __init__(self, values: dict[str, list]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.values, self.asked = values, []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Source

    def do_GET(self) -> None:
        query = {name: found[0] for name, found in parse_qs(urlsplit(self.path).query).items()}
        self.server.asked.append(query)
        found = self.server.values.get(query["query"], self.server.values.get("*"))
        body = {"data": {"result": found}} if found is not None else {"error": "parse error"}
        self.send_response(400 if found is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def source() -> Iterator[Source]:
    with Source({}) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_values_lie_at_their_times_and_gaps_are_not_numbers(source: Source) -> None:
    values = [[1000, "1.5"], [1010, "NaN"], [1015, "+Inf"], [1020, "4"]]
    source.values = {"up": [{"metric": {"job": "worker"}, "values": values}]}
    (series,) = ask(source.url, "up", SPAN)
    assert series.labels == {"job": "worker"}
    np.testing.assert_array_equal(series.values, [1.5, np.nan, np.nan, np.nan, 4.0])
    assert source.asked == [{"query": "up", "start": "1000.0", "end": "1020.0", "step": "5.0"}]


def test_what_prometheus_refuses_is_told_with_the_query(source: Source) -> None:
    with pytest.raises(ValueError, match=r"rate\(: .*parse error"):
        ask(source.url, "rate(", SPAN)


@pytest.mark.parametrize(
    ("unit", "highest", "expected"),
    [
        ("s", 1.0, (1, "s")),
        ("s", 0.02, (1e-3, "ms")),
        ("s", 5e-5, (1e-6, "µs")),
        ("s", 0.0, (1e-6, "µs")),
        ("bytes", 3 * 2**30, (2**30, "GiB")),
        ("bytes", 500, (1, "B")),
        ("percentunit", 0.4, (0.01, "%")),
        ("short", 7, (1, "")),
    ],
)
def test_an_axis_has_the_size_that_suits_its_values(
    unit: str, highest: float, expected: tuple[float, str]
) -> None:
    assert scale(unit, highest) == expected


def test_a_unit_that_is_not_known_is_an_error() -> None:
    with pytest.raises(ValueError, match="unit 'furlong' must be one of s, bytes"):
        scale("furlong", 1)


def test_rates_go_over_four_scrapes_or_over_the_gap_between_points() -> None:
    assert Span(0, 100, 5).rate_interval(5) == 20
    assert Span(0, 100, 60).rate_interval(5) == 65
    assert Query("rate(a[$__rate_interval])", "").over(12.5) == "rate(a[12500ms])"


def drawn(panel: Panel, *series: tuple[Series, ...]) -> tuple[list, str, list[str]]:
    """Lines, label of the y axis, legend."""
    axes = Figure().subplots()
    draw(axes, Answers(panel, series), SPAN)
    legend = axes.get_legend()
    names = [text.get_text() for text in legend.texts] if legend else []
    return [line.get_ydata() for line in axes.lines], axes.get_ylabel(), names


def test_lines_have_the_unit_of_the_highest_and_the_names_of_their_labels() -> None:
    panel = Panel("Wait", "s", "", (Query("a", "{{outcome}} of {{ job }}"), Query("b", "p50")))
    first = Series({"outcome": "stop", "job": "x"}, np.array([0.1, 0.2, np.nan, 0.1, 0.1]))
    second = Series({}, np.full(5, 0.05))
    lines, label, names = drawn(panel, (first,), (second,))
    np.testing.assert_allclose(lines[0], [100, 200, np.nan, 100, 100])
    np.testing.assert_allclose(lines[1], np.full(5, 50))
    assert (label, names) == ("ms", ["stop of x", "p50"])


def test_a_panel_without_data_says_so_and_names_what_it_lacks() -> None:
    panel = Panel("Wait", "s", "", (Query("a", "p50"), Query("b", "p99")))
    nothing = Series({}, np.full(5, np.nan))
    assert drawn(panel, (nothing,), ()) == ([], "", [])
    assert Answers(panel, ((nothing,), ())).lacking == ["p50", "p99"]
    assert Answers(panel, ((Series({}, np.ones(5)),), ())).lacking == ["p99"]


def test_the_command_plots_every_panel_and_ends_with_1_if_a_query_has_no_data(
    source: Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    panels = read_panels()[:3]
    monkeypatch.setattr("deploy.observe.__main__.read_panels", lambda: panels)
    source.values = {"*": []}
    command = ["--prometheus", source.url, "--minutes", "1", "--out", str(tmp_path)]
    assert main(command) == 1
    lacking = [f"no data: {panel.title}: {q.legend}" for panel in panels for q in panel.queries]
    assert capsys.readouterr().err.splitlines() == lacking
    assert len(lacking) == len(source.asked) > 3
    assert len(list(tmp_path.glob("*.png"))) == 4


def test_a_prometheus_that_is_not_there_is_one_line_and_status_1(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.server_close()
    assert main(["--prometheus", source.url, "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("observe: ")
    assert main(["--minutes", "0"]) == 1
    assert "--minutes 0 and --scrape-interval 5 s must be positive" in capsys.readouterr().err


def test_units_of_the_dashboard_are_known_and_bare_numbers_say_what_they_count() -> None:
    for panel in read_panels():
        _, name = scale(panel.unit, 1.0)
        assert name or panel.axis, panel.title
