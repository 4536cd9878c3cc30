"""What the worker's /metrics tells, made of plain records when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from nanoserve.v1 import worker_pb2
from worker.geometry import Geometry
from worker.histogram import Histogram
from worker.session import Session
from worker.statistics import Statistics

_PREFIX = "nanoserve_worker_"
_DURATIONS = {
    "queue": ("step_queue", "From a step's arrival to the start of its work"),
    "input": ("step_input", "Host work of a step: checks, tables, inputs"),
    "device": ("step_forward", "The forward of a step"),
    "sample": ("step_sample", "Sampling of a step, where it can be told from the forward"),
    "total": ("step_total", "From a step's arrival to its answer"),
    "idle": ("step_device_idle", "How long the device had nothing to do before a step"),
}
# As in worker.proto, without the prefix. All are told from the start, so that rates exist.
_REASONS = {
    number: name.removeprefix("REFUSAL_REASON_").lower()
    for name, number in worker_pb2.RefusalReason.items()
    if number != worker_pb2.REFUSAL_REASON_UNSPECIFIED
}


class WorkerCollector(Collector):
    """Of a session. Takes its lock, and that of its durations, for as long as it copies
    numbers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def collect(self) -> Iterator[Metric]:
        status = self._session.status()
        yield from _identity(self._session.geometry, status)
        yield from _rows_and_pool(self._session.geometry, status)
        yield from _totals(self._session.statistics, status)
        for name, histogram in self._session.statistics.durations.copy().items():
            yield _histogram(*_DURATIONS[name], histogram)


def _identity(
    geometry: Geometry, status: worker_pb2.WorkerServiceGetStatusResponse
) -> Iterator[Metric]:
    labels = {
        "device": geometry.device,
        "dtype": geometry.dtype,
        "fingerprint": geometry.fingerprint,
        "incarnation": f"{status.incarnation:016x}",
    }
    yield InfoMetricFamily(_PREFIX.rstrip("_"), "Device, model and incarnation", labels)


def _rows_and_pool(
    geometry: Geometry, status: worker_pb2.WorkerServiceGetStatusResponse
) -> Iterator[Metric]:
    yield _gauge("live_rows", "Rows that a request holds", status.live_rows)
    yield _gauge("max_rows", "Rows that requests can hold", geometry.max_rows)
    text = "1 while every step is refused, from a bad one until Reset"
    yield _gauge("refusing", text, status.refusing)
    yield _gauge("pool_blocks", "K/V blocks, the scratch block included", geometry.num_blocks)
    size = geometry.num_blocks * geometry.bytes_per_block
    yield _gauge("pool_bytes", "Size of the K/V pool", size)


def _totals(
    statistics: Statistics, status: worker_pb2.WorkerServiceGetStatusResponse
) -> Iterator[Metric]:
    yield _counter("steps", "Steps run", status.steps)
    refused = CounterMetricFamily(
        f"{_PREFIX}refused_steps", "Steps refused, by reason", labels=["reason"]
    )
    for number, reason in _REASONS.items():
        refused.add_metric([reason], statistics.refused_steps[number])
    yield refused
    yield _counter("computed_tokens", "Query tokens computed", status.tokens_computed)
    yield _counter("sampled_tokens", "Tokens sampled", status.tokens_sampled)
    yield _counter("connects", "Schedulers' Connect calls taken", statistics.connects)
    yield _counter("resets", "Reset calls taken", statistics.resets)
    text = "Incarnations begun, the first one included; each empties the pool"
    yield _counter("incarnations", text, statistics.incarnations)
    text = "Time from the start until ready: weights, pool and warm-up"
    yield _gauge("load_seconds", text, statistics.load_seconds or 0.0)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, float(value))


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
    return HistogramMetricFamily(f"{_PREFIX}{name}_seconds", text, buckets, histogram.sum)
