"""Prometheus's view of the engine's plain records, made when it is asked for.

Names, units and buckets are vLLM's where the meaning is the same (README: Metrics). Nothing
is counted here: a scrape reads, and the engine knows nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from scheduler.api.health import STUCK_SECONDS
from scheduler.api.metric_names import REQUEST_TIMES, STEP_TIMES, histogram_family
from scheduler.core.front_end import CallTotals, EngineStatus, FailureKind, FinishReason
from scheduler.core.statistics import Statistics

_BREATH_SECONDS = 1e-4
_READY = "1 if a worker is connected, the engine's loop turns and the server is not draining"
_EXPECTED_WAIT = "How long a request that comes would wait for its first step"
_CACHED_BLOCKS = "Of the free blocks, those that the prefix cache knows"
_QUERIES = "Prompt tokens of started requests, looked up in the prefix cache"
_HITS = "Of nanoserve_prefix_cache_queries_total, the tokens found"
_CACHED = "Prompt tokens that clients of calls that ended well were told of as cached"
_WORKER = "The worker that is connected, or was last; none before the first"
_FAILURES: tuple[FinishReason | FailureKind, ...] = tuple(FailureKind)
_OUTCOMES = (*FinishReason, *_FAILURES)


class MetricsSource(Protocol):
    """What the engine shows. Written by its thread and read here without a lock."""

    @property
    def statistics(self) -> Statistics: ...

    @property
    def calls(self) -> CallTotals: ...

    def status(self) -> EngineStatus: ...


class SchedulerCollector(Collector):
    def __init__(self, source: MetricsSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics():
            yield metric
            # Whoever turns the engine's loop would wait for the interpreter until it is taken from
            # this thread: here he gets it.
            time.sleep(_BREATH_SECONDS)

    def _metrics(self) -> Iterator[Metric]:
        status, statistics = self._source.status(), self._source.statistics
        yield from self._load(status)
        yield from _calls(self._source.calls)
        yield from _engine_totals(status, statistics)
        for name, text, of in REQUEST_TIMES:
            yield histogram_family(name, text, of(statistics.requests))
        for name, text, of_steps in STEP_TIMES:
            yield histogram_family(name, text, of_steps(statistics.steps))

    def _load(self, status: EngineStatus) -> Iterator[Metric]:
        limits = status.limits
        rows, usable = (limits.max_rows, limits.usable_blocks) if limits else (0, 0)
        used = usable - status.free_blocks if usable else 0
        age = max(0.0, self._clock() - status.loop_turned_at)
        for name, text, value in (
            ("ready", _READY, status.ready and age < STUCK_SECONDS),
            ("num_requests_running", "Requests that have a row", status.running),
            ("num_requests_waiting", "Requests that wait for a row", status.waiting),
            ("max_requests_running", "Requests that can have a row at a time", rows),
            ("kv_cache_usage_perc", "Used part of the blocks, 0 to 1", used / max(1, usable)),
            ("kv_cache_blocks", "Blocks that requests can have", usable),
            ("kv_cache_free_blocks", "Blocks that no request holds", status.free_blocks),
            ("kv_cache_cached_blocks", _CACHED_BLOCKS, status.cached_blocks),
            ("steps_in_flight", "Steps sent and not answered", status.steps_in_flight),
            ("expected_queue_wait_seconds", _EXPECTED_WAIT, status.expected_wait),
            ("engine_loop_age_seconds", "Since the last turn of the engine's loop", age),
        ):
            yield GaugeMetricFamily(f"nanoserve_{name}", text, value)
        worker = InfoMetricFamily("nanoserve_connected_worker", _WORKER)
        if status.worker_incarnation:
            # As the worker's own metrics have it, so that the two can be joined.
            incarnation = f"{status.worker_incarnation:016x}"
            worker.add_metric([], {"incarnation": incarnation, "device": status.worker_device})
        yield worker


def _calls(totals: CallTotals) -> Iterator[Metric]:
    ends = CounterMetricFamily(
        "nanoserve_requests", "Generate calls that have ended, by outcome", labels=["outcome"]
    )
    refusals = CounterMetricFamily(
        "nanoserve_requests_refused",
        "Of nanoserve_requests_total, the calls that were never taken, by reason",
        labels=["reason"],
    )
    for family, counts, members in (
        (ends, totals.outcomes, _OUTCOMES),
        (refusals, totals.refusals, _FAILURES),
    ):
        for member in members:
            family.add_metric([member.name.lower()], counts.get(member.value, 0))
        yield family
    yield _counter(
        "unauthenticated_calls", "Calls refused for want of a good token", totals.unauthenticated
    )
    yield _counter("prompt_tokens", "Prompt tokens of calls that got a token", totals.prompt_tokens)
    yield _counter("generation_tokens", "Tokens passed on to clients", totals.output_tokens)
    yield _counter("prompt_tokens_cached", _CACHED, totals.cached_tokens)


def _engine_totals(status: EngineStatus, statistics: Statistics) -> Iterator[Metric]:
    steps = statistics.steps
    for name, text, value in (
        ("num_preemptions", "Requests put back into the queue", status.preemptions),
        ("recomputed_tokens", "Tokens lost and computed again", status.recomputed_tokens),
        ("discarded_tokens", "Tokens sampled and not wanted", status.discarded_tokens),
        ("prefix_cache_queries", _QUERIES, status.prefix_queries),
        ("prefix_cache_hits", _HITS, status.prefix_hits),
        ("steps", "Steps answered", status.steps),
        ("step_sent_bytes", "Bytes of the steps answered", steps.bytes_sent),
        ("step_received_bytes", "Bytes of their answers", steps.bytes_received),
        ("worker_restarts", "Incarnations of the worker after the first", status.worker_restarts),
    ):
        yield _counter(name, text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"nanoserve_{name}", text, value)
