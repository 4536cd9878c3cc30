"""Tokens per second against batch size."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deploy.loadtest.timeline import Run

HALF = 0.5
LEAST_GAIN = 1.1


@dataclass(frozen=True, slots=True)
class BatchRate:
    """One burst of `batch` requests of the same lengths."""

    batch: int
    round: int
    decode: float  # tokens per second while all of them were running
    overall: float  # output tokens per second from the burst to the last end, prompts included

    @property
    def step_seconds(self) -> float:
        """Of a decode step of the whole batch."""
        return self.batch / self.decode

    @classmethod
    def of(cls, run: Run, batch: int, number: int) -> BatchRate:
        """Raises RuntimeError if the requests never ran together."""
        streams = [_token_times(run, i) for i in range(len(run.timelines))]
        start, end = max(times[0] for times in streams), min(times[-1] for times in streams)
        if end <= start:
            raise RuntimeError(f"of {batch} requests the first ended before the last began")
        inside = sum(int(((times > start) & (times <= end)).sum()) for times in streams)
        overall = sum(len(times) for times in streams) / max(times[-1] for times in streams)
        return cls(batch, number, inside / (end - start), overall)


@dataclass(frozen=True, slots=True)
class Curve:
    """Medians over rounds, by batch size, rising."""

    batches: tuple[int, ...]
    decode: tuple[float, ...]  # tokens per second
    lowest: tuple[float, ...]
    highest: tuple[float, ...]
    overall: tuple[float, ...]

    @classmethod
    def of(cls, rates: Sequence[BatchRate]) -> Curve:
        """`rates` has batch size 1, which the others are compared with."""
        batches = tuple(sorted({rate.batch for rate in rates}))
        decode = [[rate.decode for rate in rates if rate.batch == b] for b in batches]
        overall = [[rate.overall for rate in rates if rate.batch == b] for b in batches]
        return cls(
            batches,
            tuple(map(statistics.median, decode)),
            tuple(map(min, decode)),
            tuple(map(max, decode)),
            tuple(map(statistics.median, overall)),
        )

    @property
    def speed_up(self) -> tuple[float, ...]:
        return tuple(rate / self.decode[0] for rate in self.decode)

    @property
    def efficiency(self) -> tuple[float, ...]:
        """Share of the ideal, in which a row costs nothing: batch size times the rate of one."""
        return tuple(s / b for s, b in zip(self.speed_up, self.batches, strict=True))

    @property
    def knee(self) -> int:
        """The largest size up to which every one reaches half of the ideal: beyond it a step's
        time is mostly that of its rows, no longer that of the weights."""
        for i, share in enumerate(self.efficiency):
            if share < HALF:
                return self.batches[i - 1]
        return self.batches[-1]

    @property
    def last_gain(self) -> int:
        """The size after which the next one adds less than a tenth to the rate; the largest
        measured if each added more."""
        for i, (rate, after) in enumerate(zip(self.decode, self.decode[1:], strict=False)):
            if after < LEAST_GAIN * rate:
                return self.batches[i]
        return self.batches[-1]


def _token_times(run: Run, index: int) -> np.ndarray:
    """float64 [tokens]: when each came, from the burst on."""
    timeline = run.timelines[index]
    return np.repeat(timeline.times, timeline.token_counts) - timeline.planned
