"""Times of a stream, as its client sees them."""

from __future__ import annotations

import pytest

from nanoserve import Chunk
from nanoserve.cli.stopwatch import Stopwatch


def watch(*arrivals: tuple[float, str, int]) -> Stopwatch:
    """A stopwatch started at 0 that saw chunks of (milliseconds, text, tokens)."""
    moment = [0.0]
    stopwatch = Stopwatch(clock=lambda: moment[0])
    for milliseconds, text, tokens in arrivals:
        moment[0] = milliseconds / 1000
        stopwatch.saw(Chunk("a", text, tuple(range(tokens))))
    return stopwatch


def test_the_first_token_is_the_first_chunk_with_an_id() -> None:
    stopwatch = watch((10, "", 0), (30, "", 1), (50, "x", 0))
    assert stopwatch.first_token_seconds == 0.03


def test_the_rate_counts_tokens_not_chunks() -> None:
    stopwatch = watch((50, "a", 1), (110, "bcd", 3), (130, "e", 1), (131, "", 0))
    assert stopwatch.tokens_per_second == pytest.approx(4 / 0.08)
    assert stopwatch.summary() == "time to first token 0.050 s, 50.0 tokens/s, 5 tokens"


def test_the_first_chunks_tokens_are_in_no_rate() -> None:
    assert watch((50, "ab", 2), (110, "cde", 3)).tokens_per_second == pytest.approx(50)


@pytest.mark.parametrize("arrivals", [[(50.0, "abc", 3)], [(50.0, "a", 1)]])
def test_one_chunk_tells_no_rate(arrivals: list[tuple[float, str, int]]) -> None:
    stopwatch = watch(*arrivals)
    assert stopwatch.tokens_per_second is None
    assert "- tokens/s" in stopwatch.summary()


def test_a_stream_without_tokens_has_no_times() -> None:
    stopwatch = watch((10, "", 0))
    assert stopwatch.first_token_seconds is None
    assert stopwatch.summary() == "no tokens"
