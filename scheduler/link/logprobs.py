"""The log-probabilities of a StepResult, checked against what the step asked for."""

from __future__ import annotations

import reprlib

import numpy as np

from nanoserve.v1 import worker_pb2
from scheduler.core.logprobs import Logprobs


def result_logprobs(
    result: worker_pb2.StepResult, counts: np.ndarray | None, vocab_size: int
) -> Logprobs | None:
    """`counts`: as in StepPlan; the result's tokens and flags are good. Raises ValueError if the
    columns are not what worker.proto says of them."""
    if counts is None:
        columns = (
            result.logprob_samples,
            result.logprob_counts,
            result.logprob_ids,
            result.logprobs,
        )
        if any(columns):
            raise ValueError(f"{_name(result)} has log-probabilities, and no row asked for any")
        return None
    wanted = counts > 0
    if result.flags:
        wanted = wanted & (np.frombuffer(result.flags, "u1") == 0)
    tokens, counts = np.flatnonzero(wanted), counts[wanted]
    told = _columns(result, result.logprob_samples, result.logprob_counts)
    if not np.array_equal(told[0], tokens) or not np.array_equal(told[1], counts):
        raise ValueError(
            f"{_name(result)} has {_short(told[1])} log-probabilities of the tokens "
            f"{_short(told[0])}, must be {_short(counts)} of {_short(tokens)}"
        )
    ids, values = _columns(result, result.logprob_ids, result.logprobs, "<f4")
    found = Logprobs(tokens, counts, ids, values)
    _check_values(result, found, vocab_size)
    return found if len(tokens) else None


def _columns(
    result: worker_pb2.StepResult, first: bytes, second: bytes, dtype: str = "<i4"
) -> tuple[np.ndarray, np.ndarray]:
    """An int32 column and one beside it. Raises ValueError for different lengths."""
    if len(first) != len(second) or len(first) % 4:
        raise ValueError(
            f"{_name(result)} has columns of log-probabilities of {len(first)} and {len(second)} "
            f"bytes, must be 4 for each entry"
        )
    return np.frombuffer(first, "<i4"), np.frombuffer(second, dtype)


def _check_values(result: worker_pb2.StepResult, found: Logprobs, vocab_size: int) -> None:
    if len(found.ids) != (total := int(found.counts.sum())):
        raise ValueError(f"{_name(result)} has {len(found.ids)} log-probabilities, must be {total}")
    if (most := int(found.ids.view("<u4").max(initial=0))) >= vocab_size:
        raise ValueError(
            f"{_name(result)} has the log-probability of token {most}, must be below "
            f"{vocab_size} and not negative"
        )
    own = found.ids[np.cumsum(found.counts) - found.counts]
    sampled = np.frombuffer(result.tokens, "<i4")[found.tokens]
    if not np.array_equal(own, sampled):
        raise ValueError(
            f"{_name(result)} begins with the log-probabilities of {_short(own)}, must be of "
            f"the sampled tokens {_short(sampled)}"
        )
    if not (found.values <= 0).all():  # NaN fails this
        wrong = found.values[~(found.values <= 0)][0]
        raise ValueError(f"{_name(result)} has the log-probability {wrong:g}, must be at most 0")


def _short(column: np.ndarray) -> str:
    return reprlib.repr(column.tolist())


def _name(result: worker_pb2.StepResult) -> str:
    return f"the result of step {result.step_id}"
