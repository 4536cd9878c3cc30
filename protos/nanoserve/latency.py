"""Durations counted by range."""

from __future__ import annotations

from dataclasses import dataclass

from nanoserve.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """The fields of LatencyHistogram in inference.proto, which tells each one's meaning.

    A status has those since the server's start; `since` tells what came in between two.
    """

    bounds_seconds: tuple[float, ...]  # n, rising
    counts: tuple[int, ...]  # n + 1
    sum_seconds: float

    @property
    def count(self) -> int:
        """How many durations."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Seconds; None of none."""
        return self.sum_seconds / self.count if self.count else None

    def percentile(self, share: float) -> float | None:
        """Seconds that `share` of the durations do not exceed, 0 <= share <= 1; None of none.

        Taken to lie evenly within their range, as Prometheus' histogram_quantile does; of
        those above all bounds only the last bound is known. Raises ValueError.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share is {share}, must be 0 <= share <= 1")
        left = share * self.count
        lower = 0.0
        for bound, count in zip(self.bounds_seconds, self.counts, strict=False):
            if count and left <= count:
                return lower + (bound - lower) * left / count
            left -= count
            lower = bound
        return lower if self.count else None

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """What came after `earlier`, of the same server. Raises ValueError if the two do not
        have the same bounds."""
        if earlier.bounds_seconds != self.bounds_seconds:
            raise ValueError("the histograms have different bounds")
        pairs = zip(self.counts, earlier.counts, strict=True)
        counts = tuple(now - before for now, before in pairs)
        return LatencyHistogram(self.bounds_seconds, counts, self.sum_seconds - earlier.sum_seconds)


def histogram_from(message: pb.LatencyHistogram) -> LatencyHistogram:
    """The histogram that a message carries."""
    return LatencyHistogram(
        tuple(message.bounds_seconds), tuple(message.counts), message.sum_seconds
    )
