"""Whether log-probabilities are those that they must be."""

from __future__ import annotations

from collections.abc import Sequence

from nanoserve import TokenLogprobs


def wrong_logprobs(
    found: Sequence[TokenLogprobs], right: Sequence[TokenLogprobs], tolerance: float
) -> str:
    """What is wrong with those of some tokens; empty if nothing is: as many, the same most likely
    tokens, and values that differ by no more than the tolerance."""
    if len(found) != len(right):
        return f"{len(found)} tokens have log-probabilities and must be {len(right)}"
    for at, (one, other) in enumerate(zip(found, right, strict=True)):
        if one != other and not _is_close(one, other, tolerance):
            return f"the log-probabilities of token {at} are {one} and must be {other}"
    return ""


def _is_close(one: TokenLogprobs, other: TokenLogprobs, tolerance: float) -> bool:
    if [likely.token_id for likely in one.top] != [likely.token_id for likely in other.top]:
        return False
    values = [one.logprob, *(likely.logprob for likely in one.top)]
    right = [other.logprob, *(likely.logprob for likely in other.top)]
    return all(abs(a - b) <= tolerance for a, b in zip(values, right, strict=True))
