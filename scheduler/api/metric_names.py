"""Names and texts of the histograms, and how one becomes a metric."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from scheduler.core.histogram import Histogram
from scheduler.core.statistics import RequestTimes, StepStatistics

REQUEST_TIMES: tuple[tuple[str, str, Callable[[RequestTimes], Histogram]], ...] = (
    (
        "time_to_first_token_seconds",
        "From a request's arrival to its first token",
        lambda times: times.first_token,
    ),
    (
        "inter_token_latency_seconds",
        "Between two tokens of a request",
        lambda times: times.inter_token,
    ),
    (
        "e2e_request_latency_seconds",
        "From a request's arrival to its last token, if it ended well",
        lambda times: times.total,
    ),
    (
        "request_queue_time_seconds",
        "From a request's arrival to its first step, if it ended well",
        lambda times: times.queue,
    ),
    (
        "request_prefill_time_seconds",
        "From a request's first step to its first token, if it ended well",
        lambda times: times.prefill,
    ),
    (
        "request_decode_time_seconds",
        "From a request's first token to its last, if it ended well",
        lambda times: times.decode,
    ),
    (
        "request_prompt_tokens",
        "Prompt tokens of a request that ended well",
        lambda times: times.prompt_tokens,
    ),
    (
        "request_generation_tokens",
        "Output tokens of a request that ended well",
        lambda times: times.output_tokens,
    ),
)

STEP_TIMES: tuple[tuple[str, str, Callable[[StepStatistics], Histogram]], ...] = (
    (
        "step_round_trip_seconds",
        "From the sending of a step to its answer",
        lambda steps: steps.round_trip,
    ),
    (
        "step_wire_seconds",
        "The round trip of a step less its time within the worker",
        lambda steps: steps.wire,
    ),
    (
        "step_device_seconds",
        "Forward and sampling of a step",
        lambda steps: steps.device,
    ),
    (
        "step_device_idle_seconds",
        "How long the device had nothing to do before a step",
        lambda steps: steps.device_idle,
    ),
    ("step_tokens", "Tokens computed in a step", lambda steps: steps.tokens),
    ("step_rows", "Requests in a step", lambda steps: steps.rows),
)


def histogram_family(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    """As it is at this moment."""
    bounds = (*map(floatToGoString, histogram.bounds.tolist()), "+Inf")
    counts = histogram.counts.cumsum().tolist()
    buckets = list(zip(bounds, counts, strict=True))
    return HistogramMetricFamily(f"nanoserve_{name}", text, buckets, histogram.sum)
