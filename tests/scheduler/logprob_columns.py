"""Log-probabilities of tokens, entry by entry, as the columns that they are in the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.core.logprobs import Logprobs, TokenLogprobs

# Ids and values: the token's own, then the most likely ones.
Entry = tuple[list[int], list[float]]


def columns_of(entries: Sequence[Entry | None]) -> Logprobs | None:
    """Of a column of tokens, each with an entry or none. None if all have none."""
    have = [(place, *entry) for place, entry in enumerate(entries) if entry is not None]
    if not have:
        return None
    return Logprobs(
        np.array([place for place, _, _ in have]),
        np.array([len(ids) for _, ids, _ in have]),
        np.array([i for _, ids, _ in have for i in ids], np.int32),
        np.array([value for _, _, values in have for value in values], np.float32),
    )


def entry_of(found: TokenLogprobs | None) -> Entry | None:
    if found is None:
        return None
    ids, values = found
    return np.frombuffer(ids, np.int32).tolist(), np.frombuffer(values, np.float32).tolist()
