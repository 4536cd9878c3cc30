"""The log-probabilities of the simulated worker: a function of a row's own tokens, for any batch.

The prefix hash (worker/simulated_tokens.py) of a row's last token decides all of them. The most
likely token is what the row would draw greedily without penalties, and the ids after it, the last
one followed by 0, are ever less likely: that of the token `offset` ids after it is

    -(first + offset * step),    1 <= first < 2,    1/2 <= step < 3/2,

rounded once to float32. The probabilities add up to less than 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from worker.executor import Logprobs
from worker.simulated_tokens import Choices, mix, mix_one, next_tokens, prefix_hashes

_SALT = 0xD1B54A32D192ED03
_BITS = 20  # of `first` and `step` behind the point, so that nothing is rounded before the end


def simulated_logprobs(
    hashes: np.ndarray,
    tokens: np.ndarray,
    samples: np.ndarray,
    counts: np.ndarray,
    choices: Choices,
    vocab_size: int,
) -> Logprobs:
    """Of sampled `tokens` int32 [w] and, to each, the counts - 1 (int32 [w]) most likely ones.
    hashes uint64 [w]: of each row's last token before; samples int32 [w]: see Logprobs."""
    likely = choices.ids(next_tokens(hashes, len(choices))).astype(np.int64)
    places = np.arange(counts.max(initial=1))  # the sampled token's, then those of the most likely
    offsets = np.broadcast_to(places - 1, (len(tokens), len(places))).copy()
    offsets[:, 0] = (tokens - likely) % vocab_size
    drawn = mix(hashes ^ np.uint64(_SALT))
    first, step = 1 + _fractions(drawn, 0), 0.5 + _fractions(drawn, _BITS)
    values = -(first[:, None] + offsets * step[:, None])
    ids = (likely[:, None] + offsets) % vocab_size
    wanted = places < counts[:, None]
    values, ids = values[wanted].astype(np.float32), ids[wanted].astype(np.int32)
    return Logprobs(samples, counts, ids, values)


def _fractions(values: np.ndarray, shift: int) -> np.ndarray:
    """float64 [w] in 0 <= f < 1: the _BITS bits from `shift` on."""
    bits = (values >> np.uint64(shift)) & np.uint64((1 << _BITS) - 1)
    return bits.astype(np.float64) / (1 << _BITS)


def expected_logprobs(
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    vocab_size: int,
    top_logprobs: int,
    *,
    avoid: Iterable[int] = (),
) -> list[list[tuple[int, float]]]:
    """For each output token (id, log-probability): its own, then those of the most likely ones.

    Plain arithmetic, one token at a time, and so a check of the vectorized form.
    """
    avoid = frozenset(avoid)
    choices = [i for i in range(vocab_size) if i not in avoid] if avoid else range(vocab_size)
    hashes = prefix_hashes([*prompt_ids, *output_ids])
    expected = []
    for token, prefix in zip(output_ids, hashes[len(prompt_ids) - 1 :], strict=False):
        likely, drawn = choices[mix_one(prefix) % len(choices)], mix_one(prefix ^ _SALT)
        first = 1 + drawn % 2**_BITS / 2**_BITS
        step = 0.5 + (drawn >> _BITS) % 2**_BITS / 2**_BITS
        offsets = [(token - likely) % vocab_size, *range(top_logprobs)]
        expected.append(
            [
                ((likely + offset) % vocab_size, float(np.float32(-(first + offset * step))))
                for offset in offsets
            ]
        )
    return expected
