"""Whether the engine takes a submission."""

from __future__ import annotations

import secrets

from scheduler.core.config import EngineConfig
from scheduler.core.front_end import Failure, FailureKind, Limits, Submission
from scheduler.core.ledger import Ledger
from scheduler.core.request import Request

RETRY_SECONDS = 1.0
# While a worker is replaced nobody is admitted, and the expected wait grows on. Whoever stays away
# as long finds the server idle.
LONGEST_RETRY_SECONDS = 60.0


def refusal(
    submission: Submission,
    ledger: Ledger,
    limits: Limits,
    config: EngineConfig,
    expected_wait: float,
) -> Failure | None:
    """Why the submission is not taken; None if it is. The front end has checked it
    too, but against the worker of that moment. `expected_wait` is in seconds."""
    handle = submission.handle
    if submission.request_id in ledger.by_id:
        message = f"request_id {submission.request_id!r} is in use by a running request"
        return Failure(handle, FailureKind.DUPLICATE_ID, message, "request_id")
    prompt, output = len(submission.prompt_ids), submission.max_tokens or 1
    if prompt + output > limits.max_request_tokens:
        message = (
            f"prompt of {prompt} tokens plus max_tokens {output} is {prompt + output}, but the "
            f"model and the K/V pool have room for {limits.max_request_tokens} tokens"
        )
        return Failure(handle, FailureKind.INVALID, message, "max_tokens")
    if full := _full(prompt, ledger, limits, config):
        message, seconds = f"{full}; try again later", RETRY_SECONDS
    elif config.max_queue_wait is not None and expected_wait > config.max_queue_wait:
        message = too_long_a_wait(expected_wait, config.max_queue_wait)
        seconds = retry_after(expected_wait, config.max_queue_wait)
    else:
        return None
    return Failure(handle, FailureKind.QUEUE_FULL, message, retry_after=seconds)


def too_long_a_wait(expected: float, limit: float) -> str:
    return (
        f"a request that comes at this moment would wait for about {expected:.1f} s, and the "
        f"limit is {limit:g} s (--max-queue-wait); try again later"
    )


def retry_after(expected: float, limit: float) -> float:
    """Seconds until the wait may have come down to the limit, or it is worth another look."""
    return min(max(RETRY_SECONDS, expected - limit), LONGEST_RETRY_SECONDS)


def _full(prompt: int, ledger: Ledger, limits: Limits, config: EngineConfig) -> str:
    """Which limit of the queue a prompt of so many tokens would break; empty if none."""
    most = limits.max_rows + config.max_queue
    if ledger.num_requests >= most:
        return (
            f"{ledger.num_requests} requests are running or waiting, and the limit is {most} "
            f"({limits.max_rows} rows and a queue of {config.max_queue})"
        )
    if config.max_queue_tokens is None or not ledger.waiting:
        return ""
    waiting = sum(len(request.tokens) for request in ledger.waiting)
    if waiting + prompt <= config.max_queue_tokens:
        return ""
    return (
        f"a prompt of {prompt} tokens behind {waiting} that wait is more than the limit of "
        f"{config.max_queue_tokens} (--max-queue-tokens)"
    )


def request_for(submission: Submission, order: int, limits: Limits) -> Request:
    """A request that waits; draws a seed if the client gave none."""
    prompt_len, wanted = len(submission.prompt_ids), submission.max_tokens
    return Request(
        submission=submission,
        order=order,
        limit=limits.max_request_tokens if wanted is None else prompt_len + wanted,
        seed=secrets.randbits(63) if submission.seed is None else submission.seed,
        tokens=submission.prompt_ids,
    )
