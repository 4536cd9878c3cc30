"""Whether the engine takes a submission."""

from __future__ import annotations

import secrets

import numpy as np

from scheduler.core.front_end import Failure, FailureKind, Limits, Submission
from scheduler.core.ledger import Ledger
from scheduler.core.request import Request

RETRY_SECONDS = 1.0


def refusal(
    submission: Submission, ledger: Ledger, limits: Limits, max_queue: int
) -> Failure | None:
    """Why the submission is not taken; None if it is. The front end has checked it
    too, but against the worker of that moment."""
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
    most = limits.max_rows + max_queue
    if ledger.num_requests >= most:
        message = (
            f"{ledger.num_requests} requests are running or waiting, and the limit is {most} "
            f"({limits.max_rows} rows and a queue of {max_queue}); try again later"
        )
        return Failure(handle, FailureKind.QUEUE_FULL, message, retry_after=RETRY_SECONDS)
    return None


def request_for(submission: Submission, order: int, limits: Limits) -> Request:
    """A request that waits; draws a seed if the client gave none."""
    prompt_len, wanted = len(submission.prompt_ids), submission.max_tokens
    return Request(
        submission=submission,
        order=order,
        limit=limits.max_request_tokens if wanted is None else prompt_len + wanted,
        seed=secrets.randbits(63) if submission.seed is None else submission.seed,
        tokens=np.array(submission.prompt_ids, np.int32),
    )
