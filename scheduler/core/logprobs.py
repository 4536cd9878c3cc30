"""The log-probabilities of sampled tokens, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of those of n tokens whose requests ask for them; wherever tokens are passed on, these go
    with them. Shapes: w of the tokens have some, c in all. Each of the w has its own first,
    then those of the most likely tokens."""

    tokens: np.ndarray  # int64 [w]: which have some, as an index into the n, rising
    counts: np.ndarray  # int64 [w]: how many each has, at least 1
    ids: np.ndarray  # int32 [c]
    values: np.ndarray  # float32 [c]

    def of(self, chosen: np.ndarray) -> Logprobs | None:
        """As columns beside the `chosen` tokens, bool [n], alone; None if none of them has any."""
        if chosen.all():
            return self
        kept = chosen[self.tokens]
        if not kept.any():
            return None
        flat = np.repeat(kept, self.counts)
        places = np.cumsum(chosen) - 1
        return Logprobs(
            places[self.tokens[kept]], self.counts[kept], self.ids[flat], self.values[flat]
        )

    def by_token(self, count: int) -> list[TokenLogprobs | None]:
        """Of each of the `count` n tokens; None: it has none."""
        found: list[TokenLogprobs | None] = [None] * count
        ids, values = self.ids.tobytes(), self.values.tobytes()
        ends = 4 * np.cumsum(self.counts)
        starts = ends - 4 * self.counts
        for token, start, end in zip(
            self.tokens.tolist(), starts.tolist(), ends.tolist(), strict=True
        ):
            found[token] = ids[start:end], values[start:end]
        return found


# The bytes of its int32 ids and of its float32 values.
TokenLogprobs = tuple[bytes, bytes]


def joined(parts: Sequence[tuple[int, Logprobs]]) -> Logprobs | None:
    """Those of several columns of tokens that are put one behind the other, each with the number
    of tokens before its column."""
    if not parts:
        return None
    return Logprobs(
        np.concatenate([before + part.tokens for before, part in parts]),
        np.concatenate([part.counts for _, part in parts]),
        np.concatenate([part.ids for _, part in parts]),
        np.concatenate([part.values for _, part in parts]),
    )
