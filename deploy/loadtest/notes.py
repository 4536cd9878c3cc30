"""What a reader of the figures must know, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.loadtest.numbers import count, milliseconds
from deploy.loadtest.summary import Summary

STAGES_ARE_MIXED = (
    "Latencies and rates over all stages mix their loads: read a ramp's stages one by one."
)


def notes(summary: Summary) -> list[str]:
    """What is left out, what is uncertain and what looks wrong; the last comes first."""
    return [*_faults(summary), *_limits(summary), *_left_out(summary)]


def _faults(summary: Summary) -> Iterator[str]:
    usage, counts = summary.usage, summary.whole.requests
    if usage.wrong:
        yield (
            f"{usage.wrong:,} of {count(usage.checked, 'request')} got another number of ids "
            f"than the server's usage says: {', '.join(usage.first_wrong[:3])}"
            f"{', ...' if usage.wrong > 3 else ''}"
        )
    if summary.interrupted:
        yield "The run was interrupted; what ran then counts as unfinished."
    if counts.unfinished:
        yield (
            f"{count(counts.unfinished, 'request')} unfinished when the run ended: no end-to-end "
            "time, and a miss for goodput."
        )


def _limits(summary: Summary) -> Iterator[str]:
    unanswered = summary.whole.unanswered
    if unanswered.requests and unanswered.first_token_p99_at_least is not None:
        yield (
            f"{count(unanswered.requests, 'request')} had no first token when the run ended. With "
            "their ages at that time counted as theirs, the p99 of the time to first token would "
            f"be {milliseconds(unanswered.first_token_p99_at_least)} ms; the true one is no less."
        )
    if summary.unknown_prompts:
        yield (f"Total tokens lack {count(summary.unknown_prompts, 'prompt')} of unknown length.")
    if summary.usage.untold:
        yield (f"{summary.usage.untold:,} requests ended without a usage to check the ids against.")
    if summary.stages:
        yield STAGES_ARE_MIXED


def _left_out(summary: Summary) -> Iterator[str]:
    counts = summary.whole.requests
    if summary.warm_up_requests:
        yield f"Left out: {count(summary.warm_up_requests, 'warm-up request')}."
    else:
        yield "There was no warm-up."
    apart = ((counts.to_cancel, "cancelled"), (counts.slow_readers, "read slowly"))
    for n, what in apart:
        if n:
            yield f"In no latency and not in goodput: {count(n, 'request')} to be {what}."
    if summary.not_due_requests:
        yield (
            f"Never due: {count(summary.not_due_requests, 'request')}; the run ended before, or "
            "the turn before did not end well."
        )
    yield "Percentiles lie on the line between the two nearest of the n sorted values."
