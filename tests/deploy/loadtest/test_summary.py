from __future__ import annotations

import json
from dataclasses import replace

import pytest

from deploy.loadtest.cached import CachedPrompts
from deploy.loadtest.goodput import Limits
from deploy.loadtest.percentiles import Distribution
from deploy.loadtest.summary import Summary
from deploy.loadtest.timeline import Run, ServerSample, Stage, Timeline
from tests.deploy.loadtest.timelines import timeline

WINDOW = Stage(start=1.0, end=3.0, rate=4.0, concurrency=None)


def run_of(*timelines: Timeline, **values: object) -> Run:
    return Run({"seed": 7}, "2026-01-02T03:04:05Z", (WINDOW,), timelines, **values)


def summary_of(*timelines: Timeline, limits: str = "", **values: object) -> Summary:
    return Summary.of(run_of(*timelines, **values), Limits.parse(limits.split()))


def served(index: int = 0, planned: float = 1000, **values: object) -> Timeline:
    """First token after 100 ms, two more after 50 ms each, end to end 201 ms."""
    messages = [(planned + after, 1) for after in (100, 150, 200)]
    return timeline(*messages, planned=planned, end=planned + 201, index=index, **values)


def near(samples: int, milliseconds: float) -> Distribution:
    seconds = pytest.approx(milliseconds / 1000)
    return Distribution(samples, seconds, seconds, seconds, seconds, seconds)


def test_figures_of_requests_that_are_served_alike() -> None:
    summary = summary_of(*(served(i, 1000 + 500 * i) for i in range(3)), limits="ttft:100")
    latency = summary.whole.latency_seconds
    assert (latency.first_token, latency.first_text) == (near(3, 100), near(3, 100))
    assert (latency.per_token, latency.gap) == (near(3, 50), near(6, 50))
    assert latency.end_to_end == near(3, 201)
    rates = summary.whole.per_second
    assert (rates.offered_requests, rates.requests) == (1.5, 1.5)
    assert (rates.output_tokens, rates.total_tokens) == (4.5, 19.5)  # 9 of 3, 30 of prompts
    assert summary.whole.goodput.good == 3
    assert (summary.whole.goodput.share, summary.whole.goodput.per_second) == (1.0, 1.5)


def test_outcomes_are_counted_apart_and_failures_by_status() -> None:
    summary = summary_of(
        served(0),
        timeline(planned=1100, end=1101, status="UNAVAILABLE"),
        timeline(planned=1200, end=1201, status="HTTP 503"),
        timeline(planned=1300, end=1301, status="HTTP 503"),
        timeline((1420, 0), planned=1400, end=1430),
        timeline((1550, 1), planned=1500, end=3000, status="UNFINISHED"),
        timeline((1650, 2), planned=1600, end=1660, status="CANCELLED", cancelled=True),
    )
    counts = summary.whole.requests
    assert (counts.counted, counts.ok, counts.failed) == (7, 1, 4)
    assert (counts.unfinished, counts.cancelled) == (1, 1)
    assert counts.failures == {"HTTP 503": 2, "UNAVAILABLE": 1, "OK without a token": 1}
    assert next(iter(counts.failures)) == "HTTP 503"


def test_failed_and_unfinished_requests_are_misses_and_cancelled_ones_are_not_judged() -> None:
    summary = summary_of(
        served(0),
        timeline((1150, 1), planned=1100, end=1200, status="INTERNAL"),
        timeline((1150, 1), planned=1100, end=3000, status="UNFINISHED"),
        timeline((1150, 1), planned=1100, end=1160, status="CANCELLED", cancelled=True),
        timeline((2900, 1), planned=1100, end=2901, slow_reader=True),
        timeline((1500, 1), planned=1100, end=1501),
        limits="ttft:100 e2e:300",
    )
    goodput = summary.whole.goodput
    assert (goodput.judged, goodput.good, goodput.share) == (4, 1, 0.25)
    assert goodput.per_second == 0.5
    assert summary_of(served(0)).whole.goodput is None  # without limits


def test_what_the_plan_cancels_is_not_judged_however_it_ended() -> None:
    summary = summary_of(
        served(0),
        served(1, planned=1800, to_cancel=True),  # all of it came before the cancel
        timeline(planned=1100, end=3000, status="UNFINISHED", to_cancel=True),
        timeline(planned=1100, end=1101, status="UNAVAILABLE", to_cancel=True),
        limits="ttft:100",
    )
    assert (summary.whole.goodput.judged, summary.whole.goodput.good) == (1, 1)
    assert summary.whole.latency_seconds.first_token == near(1, 100)
    assert summary.whole.unanswered.requests == 0
    counts = summary.whole.requests
    assert (counts.to_cancel, counts.ok, counts.failed, counts.unfinished) == (3, 2, 1, 1)


def test_the_rate_of_good_requests_is_the_window_s_like_every_rate() -> None:
    summary = summary_of(
        served(0, planned=900, warm_up=True),
        timeline((950, 1), planned=800, end=1500, warm_up=True),  # too late for its limit
        served(1, planned=1500),
        served(2, planned=2900),
        limits="ttft:100",
    )
    goodput = summary.whole.goodput
    assert (goodput.judged, goodput.good) == (2, 2)
    # The first of the warm-up ended inside, the last one outside.
    assert goodput.per_second == 1.0
    assert summary.whole.per_second.requests == 1.5


def test_latencies_leave_out_what_the_plan_cancelled_or_read_slowly() -> None:
    summary = summary_of(
        served(0),
        timeline((1900, 1), planned=1100, end=1901, status="CANCELLED", cancelled=True),
        timeline((2000, 1), (2900, 1), planned=1100, end=2901, slow_reader=True),
    )
    latency = summary.whole.latency_seconds
    assert (latency.first_token, latency.gap) == (near(1, 100), near(2, 50))
    assert latency.end_to_end == near(1, 201)
    assert summary.whole.requests.slow_readers == 1


def test_failed_and_unfinished_requests_give_the_samples_that_they_have() -> None:
    summary = summary_of(
        timeline((1200, 1), (1230, 1), planned=1100, end=1240, status="INTERNAL"),
        timeline((1200, 1), (1230, 1), planned=1100, end=3000, status="UNFINISHED"),
    )
    latency = summary.whole.latency_seconds
    assert (latency.first_token, latency.gap) == (near(2, 100), near(2, 30))
    assert latency.end_to_end == Distribution(0)


def test_requests_without_a_first_token_say_what_the_p99_is_at_least() -> None:
    waiting = timeline(planned=1200, end=3000, status="UNFINISHED")
    refused = timeline(planned=1100, end=1101, status="RESOURCE_EXHAUSTED")
    summary = summary_of(served(0), waiting, refused)
    assert summary.whole.latency_seconds.first_token == near(1, 100)
    assert summary.whole.unanswered.requests == 1
    # Rank 0.99 between 100 and 1800 ms.
    assert summary.whole.unanswered.first_token_p99_at_least == pytest.approx(1.783)


def test_tokens_count_in_the_window_in_which_they_come_whoever_they_are_for() -> None:
    summary = summary_of(
        timeline((900, 1), (1500, 4), planned=800, end=1600, warm_up=True),
        timeline((2900, 2), (3100, 50), planned=2800, end=3200, prompt_tokens=6),
        timeline((1200, 7), planned=1100, end=1300, status="INTERNAL"),
        timeline((1200, 2), planned=1100, end=1300, status="CANCELLED", cancelled=True),
        timeline((1200, 2), planned=1100, end=3000, status="UNFINISHED"),
    )
    rates = summary.whole.per_second
    assert rates.output_tokens == (4 + 2 + 2 + 2) / 2
    assert rates.total_tokens == rates.output_tokens + (6 + 10 + 10) / 2
    assert rates.requests == 0.5  # the one of the warm-up ended inside, the other outside
    assert rates.offered_requests == 2.0


def test_the_window_is_open_at_its_start_and_closed_at_its_end() -> None:
    summary = summary_of(timeline((1000, 1), (2000, 2), (3000, 4), planned=1000, end=3000))
    assert summary.whole.per_second.output_tokens == 3.0
    assert summary.whole.per_second.total_tokens == 3.0  # the prompt came before
    assert (summary.whole.per_second.requests, summary.whole.per_second.offered_requests) == (
        0.5,
        0.5,
    )


def test_warm_up_requests_are_in_no_count_and_no_latency() -> None:
    summary = summary_of(served(0, planned=500, warm_up=True), served(1))
    assert (summary.warm_up_requests, summary.whole.requests.counted) == (1, 1)
    assert summary.whole.latency_seconds.first_token.n == 1
    assert summary.lag.seconds.n == 1


def test_a_request_never_sent_counts_only_if_it_was_due() -> None:
    due = replace(timeline(planned=2999, end=3000, status="NOT_SENT", index=0), sent=None)
    never_due = replace(timeline(planned=1500, end=3000, status="NOT_DUE", index=1), sent=None)
    summary = summary_of(due, never_due, limits="ttft:1")
    assert (summary.not_due_requests, summary.whole.requests.unfinished) == (1, 1)
    assert (summary.whole.goodput.judged, summary.whole.goodput.share) == (1, 0.0)


@pytest.mark.parametrize(("lag", "void"), [(5.0, False), (5.1, True)])
def test_a_run_is_void_if_the_tool_lags_more_than_5_ms_at_p99(lag: float, void: bool) -> None:
    summary = summary_of(*(served(i, planned=1024, sent=1024 + lag) for i in range(3)))
    assert summary.void is void
    assert summary.lag.seconds.p99 == pytest.approx(lag / 1000)
    report = summary.to_json()
    assert report["void"] is void
    assert ("lagged: p99 5.1 ms, limit 5 ms" in (report["void_reason"] or "")) is void


def test_a_request_due_long_ago_and_never_sent_voids_the_run() -> None:
    summary = summary_of(replace(timeline(planned=1000, end=3000, status="NOT_SENT"), sent=None))
    assert summary.void
    assert summary.lag.seconds.max == 2.0


def test_a_run_without_a_request_is_void_and_has_no_figures() -> None:
    summary = summary_of(limits="ttft:1")
    assert summary.to_json()["void_reason"] == "no measured request was due: nothing was measured"
    assert summary.whole.latency_seconds.gap == Distribution(0)
    assert summary.whole.goodput.share is None


def test_ids_are_held_against_the_usage_that_the_server_told() -> None:
    summary = summary_of(
        served(0, output_tokens=3),
        served(1, output_tokens=4),
        served(2),
        timeline((1200, 1), end=1300, status="INTERNAL", output_tokens=9),
    )
    usage = summary.usage
    assert (usage.checked, usage.untold, usage.wrong, usage.first_wrong) == (2, 1, 1, ("r1",))


def test_cached_prompt_tokens_are_those_of_requests_that_ended_well_and_told_it() -> None:
    summary = summary_of(
        served(0, cached_tokens=8),
        served(1, cached_tokens=0),
        served(2),
        timeline((1200, 1), end=1300, status="INTERNAL", cached_tokens=9),
    )
    assert summary.cached == CachedPrompts(2, prompt_tokens=20, cached_tokens=8, share=0.4)
    assert summary.to_json()["cached"]["share"] == 0.4
    assert summary_of(served(0)).cached == CachedPrompts(0, 0, 0, None)


def test_the_servers_load_is_taken_from_samples_within_the_window() -> None:
    samples = (
        ServerSample(0.5, running=99, waiting=99, free_blocks=0, usable_blocks=10, preemptions=1),
        ServerSample(1.5, running=2, waiting=0, free_blocks=8, usable_blocks=10, preemptions=3),
        ServerSample(2.5, running=4, waiting=3, free_blocks=5, usable_blocks=10, preemptions=8),
    )
    load = summary_of(served(0), samples=samples).server
    assert (load.samples, load.running_mean, load.running_max) == (2, 3.0, 4)
    assert (load.waiting_mean, load.waiting_max, load.preemptions) == (1.5, 3, 5)
    assert (load.pool_used_mean, load.pool_used_max) == (pytest.approx(0.35), 0.5)
    assert summary_of(served(0)).server is None


def test_each_stage_has_its_requests_latencies_and_its_windows_rates() -> None:
    stages = (Stage(0.0, 1.0, 2.0, None), Stage(1.0, 2.0, 4.0, None))
    first = timeline((900, 1), (1100, 2), planned=800, end=1100, stage=0)
    second = timeline((1500, 1), planned=1200, end=1501, stage=1)
    run = Run({}, "", stages, (first, second), knee=2.0)
    summary = Summary.of(run, Limits.parse(["ttft:200"]))
    (_, low), (_, high) = summary.stages
    assert low.latency_seconds.first_token == near(1, 100)
    assert high.latency_seconds.first_token == near(1, 300)
    assert (low.per_second.output_tokens, high.per_second.output_tokens) == (1.0, 3.0)
    assert (low.per_second.requests, high.per_second.requests) == (0.0, 2.0)
    assert (low.goodput.share, high.goodput.share) == (1.0, 0.0)
    assert summary.whole.per_second.output_tokens == 2.0
    assert summary.knee == 2.0
    assert summary_of(served(0)).stages == ()


def test_the_parts_of_a_mix_have_figures_of_their_own() -> None:
    summary = summary_of(served(0, group="short"), served(1, group="long"), served(2, group="long"))
    assert [(name, f.requests.counted) for name, f in summary.groups.items()] == [
        ("long", 2),
        ("short", 1),
    ]
    assert summary.groups["long"].per_second.output_tokens == 3.0
    assert summary_of(served(0, group="all")).groups == {}


def test_the_report_is_json_in_seconds_with_the_method_and_the_seed() -> None:
    report = json.loads(json.dumps(summary_of(served(0), limits="tpot:50").to_json()))
    assert report["format"] == "nanoserve-loadtest-report-1"
    assert report["settings"] == {"seed": 7}
    assert report["percentile_method"].startswith("linear interpolation")
    assert report["latency_seconds"]["gap"]["n"] == 2
    assert report["latency_seconds"]["gap"]["p50"] == pytest.approx(0.05)
    assert report["goodput"]["limits"] == {"ttft": None, "tpot": 50.0, "gap": None, "e2e": None}
    assert (report["warm_up_requests"], report["window_seconds"]) == (0, 2.0)
