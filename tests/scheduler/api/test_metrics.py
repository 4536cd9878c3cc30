"""What /metrics tells is what the engine's records hold, under the documented names."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from scheduler.api.metrics import SchedulerCollector
from scheduler.core.front_end import CallTotals, FailureKind, FinishReason, RequestUsage
from scheduler.core.worker_link import StepAnswer, StepTimes
from tests.scheduler.api.scripted_engine import ScriptedEngine


def text_of(engine: ScriptedEngine, now: float | None = None) -> str:
    registry = CollectorRegistry()
    clock = engine.status().loop_turned_at if now is None else now
    registry.register(SchedulerCollector(engine, lambda: clock))
    return generate_latest(registry).decode()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def engine() -> ScriptedEngine:
    """With a little of everything counted."""
    engine = ScriptedEngine([2])
    engine.calls = CallTotals({"stop": 3, "queue full": 2}, {"queue full": 2}, 21, 13, 8)
    statistics = engine.statistics
    statistics.requests.first_token.observe(0.05)
    statistics.requests.ended(RequestUsage(7, 4, 0.25, 0.5, 0.75, 1))
    times = StepTimes(device=3_000_000, sample=1_000_000, total=5_000_000, round_trip=7_000_000)
    answer = StepAnswer(1, None, None, replace(times, idle=2_000_000), 300, 40)
    statistics.steps.answered([answer], num_rows=2, num_tokens=7)
    return engine


def test_gauges_and_counters_are_the_engines_status_and_the_calls_totals(engine):
    found = samples(text_of(engine, engine.status().loop_turned_at + 0.5))
    expected = {
        "ready": 1,
        "num_requests_running": 0,
        "num_requests_waiting": 1,
        "max_requests_running": 64,
        "kv_cache_usage_perc": 2046 / 2048,
        "kv_cache_blocks": 2048,
        "kv_cache_free_blocks": 2,
        "kv_cache_cached_blocks": 1,
        "steps_in_flight": 3,
        "expected_queue_wait_seconds": 0,
        "steps_total": 4,
        "prompt_tokens_total": 21,
        "generation_tokens_total": 13,
        "prompt_tokens_cached_total": 8,
        "prefix_cache_queries_total": 12,
        "prefix_cache_hits_total": 7,
        "discarded_tokens_total": 8,
        "num_preemptions_total": 9,
        "recomputed_tokens_total": 10,
        "worker_restarts_total": 11,
        "step_sent_bytes_total": 300,
        "step_received_bytes_total": 40,
    }
    assert {name: found[f"nanoserve_{name}",] for name in expected} == expected
    assert found["nanoserve_engine_loop_age_seconds",] == pytest.approx(0.5)
    assert found["nanoserve_requests_total", "stop"] == 3
    assert found["nanoserve_requests_total", "queue_full"] == 2
    assert found["nanoserve_requests_refused_total", "queue_full"] == 2
    assert found["nanoserve_connected_worker_info", "simulated", "0000000000000007"] == 1


def test_an_engine_that_stands_still_is_not_ready(engine):
    turned_at = engine.status().loop_turned_at
    ready = [samples(text_of(engine, turned_at + s))["nanoserve_ready",] for s in (9, 11)]
    assert ready == [1, 0]


def test_each_histogram_has_its_buckets_sum_and_count(engine):
    found = samples(text_of(engine))
    sums = {
        "time_to_first_token_seconds": 0.05,
        "e2e_request_latency_seconds": 0.75,
        "request_queue_time_seconds": 0.25,
        "request_prefill_time_seconds": 0.25,
        "request_decode_time_seconds": 0.25,
        "request_prompt_tokens": 7,
        "request_generation_tokens": 4,
        "step_round_trip_seconds": 0.007,
        "step_wire_seconds": 0.002,
        "step_device_seconds": 0.004,
        "step_device_idle_seconds": 0.002,
        "step_tokens": 7,
        "step_rows": 2,
    }
    assert {name: found[f"nanoserve_{name}_sum",] for name in sums} == pytest.approx(sums)
    assert {found[f"nanoserve_{name}_count",] for name in sums} == {1}
    name = "nanoserve_time_to_first_token_seconds_bucket"
    assert [found[name, le] for le in ("0.04", "0.06", "2560.0", "+Inf")] == [0, 1, 1, 1]
    assert found["nanoserve_inter_token_latency_seconds_count",] == 0


def test_every_label_value_is_there_from_the_start_and_no_others_come(engine):
    before = samples(text_of(ScriptedEngine([2])))
    after = samples(text_of(engine))
    assert before.keys() == after.keys()
    outcomes = {key[1] for key in before if key[0] == "nanoserve_requests_total"}
    assert outcomes == {m.name.lower() for m in (*FinishReason, *FailureKind)}
    reasons = {key[1] for key in before if key[0] == "nanoserve_requests_refused_total"}
    assert reasons == {kind.name.lower() for kind in FailureKind}
    assert {before[key] for key in before if key[0] == "nanoserve_requests_total"} == {0}


def test_before_the_first_worker_nothing_is_told_of_one():
    engine = ScriptedEngine([2], limits=None)
    status = replace(engine.status(), worker_incarnation=0, worker_device="", free_blocks=0)
    engine.status = lambda: status
    found = samples(text_of(engine))
    assert found["nanoserve_ready",] == found["nanoserve_kv_cache_usage_perc",] == 0
    assert not any(key[0] == "nanoserve_connected_worker_info" for key in found)


def test_all_names_begin_alike_and_have_a_text(engine):
    families = list(text_string_to_metric_families(text_of(engine)))
    assert len(families) > 30
    assert all(f.name.startswith("nanoserve_") and len(f.documentation) > 3 for f in families)


def test_promtool_finds_nothing_wrong(engine):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text_of(engine),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
