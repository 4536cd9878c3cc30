"""The tokens of the simulated worker: a function of a row's own tokens, for any batch.

Position p of a row has a prefix hash: the sum, modulo 2^64, of one mixed 64-bit value per
(token, position) up to and with p. Sums split at any chunk border and vectorize, and each
lost, repeated or changed token changes them. The mixer is SplitMix64's finalizer (Steele,
Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from worker.step import has_penalties

_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def mix(values: np.ndarray) -> np.ndarray:
    """uint64 [n] -> uint64 [n], a bijection."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_M1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_M2)
    return values ^ (values >> np.uint64(31))


def token_values(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """uint64 [n]: what each token adds to the prefix hash of its row."""
    packed = (positions.astype(np.uint64) << np.uint64(32)) | tokens.astype(np.uint64)
    return mix(packed + np.uint64(_GOLDEN))


def draw_salts(
    temperatures: np.ndarray, seeds: np.ndarray, penalties: np.ndarray, prompt_lens: np.ndarray
) -> np.ndarray:
    """uint64 [n]: what changes the draws of each row. The seed counts only where the temperature is
    above 0, the prompt's length only where there are penalties (float32 [n, 3])."""
    salts = np.where(temperatures > 0, mix(seeds + np.uint64(_GOLDEN)), np.uint64(0))
    if (penalized := has_penalties(penalties)).any():
        salts ^= np.where(penalized, _penalty_salts(penalties, prompt_lens), np.uint64(0))
    return salts


def _penalty_salts(penalties: np.ndarray, prompt_lens: np.ndarray) -> np.ndarray:
    salts = prompt_lens.astype(np.uint64)
    for bits in (penalties + np.float32(0)).view(np.uint32).astype(np.uint64).T:  # no -0.0
        salts = mix(salts + bits + np.uint64(_GOLDEN))
    return salts


def next_tokens(prefixes: np.ndarray, choices: int, salts: np.ndarray | int = 0) -> np.ndarray:
    """int64 [n] in 0 <= index < choices, from the prefix hash of each row's last token and its
    `draw_salts`; without them those of greedy rows without penalties."""
    return (mix(prefixes ^ np.asarray(salts, np.uint64)) % np.uint64(choices)).astype(np.int64)


class Choices:
    """The ids that may be drawn: the vocabulary without `avoid`."""

    def __init__(self, vocab_size: int, avoid: Iterable[int] = ()) -> None:
        self._ids = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), list(avoid))
        if not len(self._ids):
            raise ValueError(f"avoid names all {vocab_size} ids of the vocabulary: keep at least 1")

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, indices: np.ndarray) -> np.ndarray:
        """int32 [n]"""
        return self._ids[indices]


def expected_tokens(
    prompt_ids: Sequence[int],
    count: int,
    vocab_size: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    avoid: Iterable[int] = (),
) -> list[int]:
    """The first `count` output ids of the simulated worker for a prompt.

    Plain integer arithmetic, one token at a time, and so a check of the vectorized form.
    """
    avoid = frozenset(avoid)
    choices = [i for i in range(vocab_size) if i not in avoid] if avoid else range(vocab_size)
    salt = mix_one(seed + _GOLDEN) if temperature > 0 else 0
    penalties = (repetition_penalty, frequency_penalty, presence_penalty)
    if penalties != (1, 0, 0):
        salted = len(prompt_ids)
        for penalty in penalties:
            salted = mix_one(salted + int.from_bytes(struct.pack(">f", penalty or 0.0)) + _GOLDEN)
        salt ^= salted
    prefix = prefix_hashes(prompt_ids)[-1] if prompt_ids else 0
    output: list[int] = []
    for position in range(len(prompt_ids), len(prompt_ids) + count):
        token = choices[mix_one((prefix & _MASK) ^ salt) % len(choices)]
        output.append(token)
        prefix += mix_one(((position << 32) | token) + _GOLDEN)
    return output


def prefix_hashes(ids: Sequence[int]) -> list[int]:
    """Of each position of a row that begins with these tokens, in plain integers."""
    hashes, sum_ = [], 0
    for position, token in enumerate(ids):
        sum_ = (sum_ + mix_one(((position << 32) | token) + _GOLDEN)) & _MASK
        hashes.append(sum_)
    return hashes


def mix_one(value: int) -> int:
    """`mix` in plain integers."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)
