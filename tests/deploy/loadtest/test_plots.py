from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import StepPatch

from deploy.loadtest.goodput import Limits
from deploy.loadtest.plots import latencies, load, over_time, server, style
from deploy.loadtest.summary import Summary
from deploy.loadtest.timeline import Run, ServerSample, Stage, Timeline
from tests.deploy.loadtest.timelines import timeline

Drawn = Callable[..., list[Axes]]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Drawn:
    """Calls a plot function and returns the axes that it drew on."""

    def draw(module: object, plot: Callable[..., None], *args: object) -> list[Axes]:
        kept: list[Axes] = []

        @contextmanager
        def picture(*args: object, **sharing: bool) -> Iterator[list[Axes]]:
            with style.picture(*args, **sharing) as axes:
                kept.extend(axes)
                yield axes

        monkeypatch.setattr(style, "_DPI", 30)
        monkeypatch.setattr(module, "picture", picture)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plot(*args, "of what", None, tmp_path / "plot.png")
        assert (tmp_path / "plot.png").stat().st_size > 0
        return kept

    return draw


def run_of(*timelines: Timeline, stages: tuple[Stage, ...] = (), **values: object) -> Run:
    return Run({}, "", stages or (Stage(0.0, 2.0, 5.0, None),), timelines, **values)


def texts(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [text.get_text() for text in [*axes.texts, *(legend.texts if legend else [])]]


def waits(*milliseconds: float) -> list[Timeline]:
    return [timeline((t, 1), (t + 10, 1), end=t + 20, index=i) for i, t in enumerate(milliseconds)]


def test_a_latency_is_drawn_as_the_share_of_requests_that_took_at_most_so_long(
    drawn: Drawn,
) -> None:
    run = run_of(*waits(100, 200, 300))
    limits = Limits(ttft=250)
    first_token, per_token, gap, end_to_end = drawn(
        latencies, latencies.plot_latencies, [("", run)], limits
    )
    milliseconds, shares = first_token.lines[0].get_data()
    assert np.interp([0, 25, 50, 100], shares, milliseconds) == pytest.approx(
        [100, 150, 200, 300], abs=0.5
    )
    assert {"p50 200.0", "p90 280.0", "p99 298.0", "n = 3", "limit 250 ms"} <= set(
        texts(first_token)
    )
    assert {"p50 10.00", "n = 3"} <= set(texts(per_token))
    assert {"p50 10.00", "n = 3"} <= set(texts(gap))
    assert {"p50 220.0", "n = 3"} <= set(texts(end_to_end))


def test_two_runs_are_drawn_over_each_other_each_with_its_name(drawn: Drawn) -> None:
    runs = [("A: ", run_of(*waits(300, 300))), ("B: ", run_of(*waits(100)))]
    first_token, *_ = drawn(latencies, latencies.plot_latencies, runs, Limits())
    assert texts(first_token)[-2:] == ["A: n = 2", "B: n = 1"]
    left, right = (t for t in first_token.texts if t.get_text().startswith("p50"))
    assert (left.get_text(), left.get_ha()) == ("p50 100.0", "right")  # clear of the other
    assert (right.get_text(), right.get_ha()) == ("p50 300.0", "left")


def test_tokens_that_come_at_the_same_time_can_be_drawn(drawn: Drawn) -> None:
    run = run_of(timeline((100, 1), (100, 1), end=100))
    _, _, gap, _ = drawn(latencies, latencies.plot_latencies, [("", run)], Limits())
    assert "p99 0.00" in texts(gap)


def test_a_latency_without_samples_says_so(drawn: Drawn) -> None:
    run = run_of(timeline(end=1, status="UNAVAILABLE"))
    panels = drawn(latencies, latencies.plot_latencies, [("", run)], Limits())
    assert [texts(axes) for axes in panels] == [["no samples"]] * 4


def test_the_servers_load_is_drawn_over_time(drawn: Drawn) -> None:
    samples = (ServerSample(0.5, 3, 0, 60, 80, 0), ServerSample(1.0, 5, 2, 20, 80, 0))
    requests, pool = drawn(server, server.plot_server, run_of(samples=samples))
    running, waiting = requests.lines[:2]
    assert (running.get_label(), list(running.get_ydata())) == ("running", [3, 5])
    assert (waiting.get_label(), list(waiting.get_ydata())) == ("waiting", [0, 2])
    assert list(running.get_xdata()) == [0.5, 1.0]
    assert list(pool.lines[0].get_ydata()) == [25.0, 75.0]


def test_first_tokens_and_throughput_are_drawn_over_time(drawn: Drawn) -> None:
    run = run_of(
        timeline((150, 1), (160, 3), planned=100, end=161),
        timeline((700, 2), planned=500, end=701),
        timeline(planned=600, end=601, status="UNAVAILABLE"),
        timeline(planned=900, end=2000, status="UNFINISHED"),
        timeline((900, 1), planned=800, end=901, status="CANCELLED", cancelled=True),
    )
    first_tokens, throughput = drawn(over_time, over_time.plot_over_time, run)
    dots = first_tokens.lines[0]
    assert list(zip(*dots.get_data(), strict=True)) == [
        pytest.approx((0.1, 50)),
        pytest.approx((0.5, 200)),
    ]
    assert {"failed without a token: 1", "unfinished without a token: 1"} <= set(
        texts(first_tokens)
    )
    filled = next(patch for patch in throughput.patches if isinstance(patch, StepPatch))
    rates, edges, _ = filled.get_data()
    assert float((rates * np.diff(edges)).sum()) == pytest.approx(7)  # all output tokens


def test_a_ramp_is_drawn_against_its_rates_in_order(drawn: Drawn) -> None:
    stages = tuple(Stage(float(i), i + 1.0, rate, None) for i, rate in enumerate((2.0, 8.0, 4.0)))
    timelines = [
        timeline((s * 1000 + wait, 5), planned=s * 1000, end=s * 1000 + wait, index=s, stage=s)
        for s, wait in enumerate((100, 800, 200))
    ]
    run = run_of(*timelines, stages=stages, knee=4.0)
    summary = Summary.of(run, Limits(ttft=500))
    first_token, per_token, served, tokens = drawn(load, load.plot_load, summary)
    p50 = first_token.lines[0]
    assert (list(p50.get_xdata()), list(p50.get_ydata())) == (
        [2, 4, 8],
        pytest.approx([100, 200, 800]),
    )
    assert "knee 4/s" in texts(first_token)
    assert "no samples" in texts(per_token)
    lines = {line.get_label(): list(line.get_ydata()) for line in served.lines}
    assert (lines["offered"], lines["ended well"]) == ([0, 2, 4, 8], [1, 1, 1])
    assert lines["within the limits (goodput)"] == [1, 1, 0]
    assert list(tokens.lines[0].get_ydata()) == [5, 5, 5]
