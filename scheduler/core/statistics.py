"""What the engine measures of requests and steps, as plain records.

Names, units and bucket bounds are those of the metrics made from them (scheduler/api), which
follow vLLM's where the meaning is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.core.front_end import RequestUsage
from scheduler.core.histogram import Histogram
from scheduler.core.totals import Totals
from scheduler.core.worker_link import StepAnswer

# Seconds.
FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_BOUNDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
# vLLM's begin at 0.3, and a queue that is short would read as a wait of 0.15.
REQUEST_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2),
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01),
    *(0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
# Tokens, or rows.
TOKEN_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
STEP_ROW_BOUNDS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)


class RequestTimes:
    """Seconds, by the engine's clock, of requests that it ended well; the first two of all."""

    def __init__(self) -> None:
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)  # from arrival
        self.inter_token = Histogram(INTER_TOKEN_BOUNDS)  # between a request's tokens
        self.queue = Histogram(REQUEST_BOUNDS)  # from arrival to the first step planned
        self.prefill = Histogram(REQUEST_BOUNDS)  # from there to the first token
        self.decode = Histogram(REQUEST_BOUNDS)  # from there to the last
        self.total = Histogram(REQUEST_BOUNDS)  # from arrival to the last
        self.prompt_tokens = Histogram(TOKEN_BOUNDS)
        self.output_tokens = Histogram(TOKEN_BOUNDS)

    def ended(self, usage: RequestUsage) -> None:
        """A request that ended well."""
        total, first = usage.total_seconds, usage.first_token_seconds
        first = total if first is None else first
        self.queue.observe(usage.queue_seconds)
        self.prefill.observe(first - usage.queue_seconds)
        self.decode.observe(total - first)
        self.total.observe(total)
        self.prompt_tokens.observe(usage.prompt_tokens)
        self.output_tokens.observe(usage.output_tokens)


class StepStatistics:
    """Of answered steps. Times in seconds: the round trip by the scheduler's clock, the others
    durations that the worker told."""

    def __init__(self) -> None:
        self.round_trip = Histogram(STEP_BOUNDS)
        self.wire = Histogram(STEP_BOUNDS)  # the round trip less the worker's own total
        self.device = Histogram(STEP_BOUNDS)  # forward and sampling
        self.device_idle = Histogram(STEP_BOUNDS)  # before the step, see worker.proto
        self.tokens = Histogram(STEP_TOKEN_BOUNDS)  # computed
        self.rows = Histogram(STEP_ROW_BOUNDS)
        self.bytes_sent = 0
        self.bytes_received = 0

    def answered(self, answers: Sequence[StepAnswer], num_rows: int, num_tokens: int) -> None:
        """A step with the answers to its repetitions, in order, which computed so many tokens
        together."""
        device = idle = 0
        for answer in answers:
            times = answer.times_ns
            device += times.device + times.sample
            idle += times.idle or 0
            self.bytes_received += answer.bytes_received
        self.bytes_sent += answers[0].bytes_sent
        self.round_trip.observe(times.round_trip / 1e9)  # of the last
        self.wire.observe(max(0, times.round_trip - times.total) / 1e9)
        self.device.observe(device / 1e9)
        if answers[0].times_ns.idle is not None:
            self.device_idle.observe(idle / 1e9)
        self.tokens.observe(num_tokens)
        self.rows.observe(num_rows)


@dataclass(slots=True)
class Statistics:
    """All of it, from the engine's start on."""

    totals: Totals = field(default_factory=Totals)
    requests: RequestTimes = field(default_factory=RequestTimes)
    steps: StepStatistics = field(default_factory=StepStatistics)
