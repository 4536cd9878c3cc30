from __future__ import annotations

from deploy.loadtest.compare import Comparison
from deploy.loadtest.goodput import Limits
from deploy.loadtest.summary import Summary
from deploy.loadtest.timeline import Run, Stage, Timeline
from tests.deploy.loadtest.timelines import timeline

LIMITS = Limits(ttft=100)


def summary_of(*timelines: Timeline, settings: dict | None = None) -> Summary:
    run = Run(settings or {}, "", (Stage(0.0, 2.0, None, 1),), timelines)
    return Summary.of(run, LIMITS)


QUICK = timeline((100, 1), (120, 1), end=121)
SLOW = timeline((250, 1), (300, 1), end=301)
REFUSED = timeline(end=1, status="UNAVAILABLE")


def lines_by_name(comparison: Comparison) -> dict[str, tuple]:
    lines = (*comparison.latencies, *comparison.served, *comparison.lost)
    exact = {x.name: (x.a, x.b, x.ratio) for x in lines}
    return {n: tuple(v if v is None else round(v, 9) for v in x) for n, x in exact.items()}


def test_each_figure_of_b_stands_against_that_of_a() -> None:
    lines = lines_by_name(Comparison(summary_of(QUICK), summary_of(SLOW, SLOW, REFUSED)))
    assert lines["latency_seconds.first_token.n"] == (1, 2, None)
    assert lines["latency_seconds.first_token.p50"] == (0.1, 0.25, 2.5)
    assert lines["latency_seconds.gap.p99"] == (0.02, 0.05, 2.5)
    assert lines["latency_seconds.end_to_end.mean"] == (0.121, 0.301, round(301 / 121, 9))
    assert lines["per_second.requests"] == (0.5, 1.0, 2.0)
    assert lines["per_second.output_tokens"] == (1.0, 2.0, 2.0)
    assert lines["per_second.total_tokens"] == (6.0, 12.0, 2.0)
    assert lines["goodput.share"] == (1.0, 0.0, 0.0)
    assert lines["requests.failed"] == (0, 1, None)  # nothing to divide by


def test_what_a_run_has_no_sample_of_has_no_ratio() -> None:
    lines = lines_by_name(Comparison(summary_of(REFUSED), summary_of(QUICK)))
    assert lines["latency_seconds.first_token.p50"] == (None, 0.1, None)


def test_settings_that_differ_are_named_with_both_values() -> None:
    a = summary_of(QUICK, settings={"seed": 1, "arrivals": {"rate": 2.0, "cv": 1.0}})
    b = summary_of(QUICK, settings={"arrivals": {"rate": 4.0, "cv": 1.0}, "text": "x"})
    assert Comparison(a, b).different_settings == {
        "seed": (1, None),
        "arrivals.rate": (2.0, 4.0),
        "text": (None, "x"),
    }
    assert Comparison(a, a).different_settings == {}


def test_what_differs_between_any_two_runs_is_no_difference() -> None:
    def settings(steps: int, model: str, date: str) -> dict:
        server = {"model": model, "steps": steps, "uptime_seconds": steps / 9}
        return {"server": server, "machine": {"date": date, "cores": 2}}

    first = summary_of(QUICK, settings=settings(1, "a", "2026-01-02"))
    same = summary_of(QUICK, settings=settings(7, "a", "2026-01-03"))
    other = summary_of(QUICK, settings=settings(7, "b", "2026-01-03"))
    assert Comparison(first, same).different_settings == {}
    assert Comparison(first, other).different_settings == {"server.model": ("a", "b")}


def test_a_comparison_with_a_void_run_is_void() -> None:
    late = summary_of(timeline((100, 1), end=121, planned=0, sent=9))
    assert not Comparison(summary_of(QUICK), summary_of(QUICK)).to_json()["void"]
    assert Comparison(summary_of(QUICK), late).to_json()["void"]
    assert Comparison(late, summary_of(QUICK)).to_json()["void"]
