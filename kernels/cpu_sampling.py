"""Sampling of the CPU face, compiled: one pass over a row's logits, each row an item.

A row's greedy token is its first maximum. A drawn one is the first maximum of

    score = logit / temperature + noise         (kernels.noise: Gumbel-max, Gumbel 1954)

whose noise takes two logarithms, some hundred times as long as the rest. They are taken only of
tokens that may have the maximum: those with a limit (`kernels.vector_noise`: the same score with
more than the noise, and additions round alike) that the best score so far does not pass. That is
a few tokens in each of the first stretches, and then hardly any.
"""

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray

from kernels import noise, vector
from kernels.compiled import address, float_bits, inner, kernel, launch, pointer, take
from kernels.cpu_numbers import FLOAT32, KINDS, floats, size_of, to_float, widen
from kernels.vector import LANES
from kernels.vector_noise import noise_limits

_STRETCH = 2048  # tokens


def sample(
    logits: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    tokens: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `kernels.reference.sample`."""
    lines, vocab = logits.shape
    out = torch.empty(lines, dtype=torch.int32) if out is None else out
    launch(
        _sample,
        lines,
        2 * logits.numel(),
        vocab,
        KINDS[logits.dtype],
        float_bits(noise.MIN_TEMPERATURE),
        address(logits, logits.dtype),
        address(_token_hashes(vocab), torch.int32),
        address(rows, torch.int32),
        address(positions, torch.int32),
        address(temperatures, torch.float32),
        address(seeds, torch.int64),
        address(tokens, torch.int32),
        tokens.shape[1],
        address(out, torch.int32),
    )
    return out


@cache
def _token_hashes(vocab: int) -> torch.Tensor:
    """Of whole vectors of tokens."""
    whole = -(-vocab // LANES) * LANES
    return noise.token_hashes(torch.arange(whole, dtype=torch.int32))


@kernel
def _sample(arguments: Any) -> None:
    lines, vocab, kind = arguments[1], arguments[2], arguments[3]
    greedy_below, logits, hashes = to_float(np.uint32(arguments[4])), arguments[5], arguments[6]
    temperatures, seeds, width = arguments[9], arguments[10], arguments[12]
    numbers, limits = np.empty(_STRETCH, np.float32), np.empty(_STRETCH, np.float32)
    while True:
        line = take(arguments)
        if line >= lines:
            return
        row = _int32(arguments[7], line)
        position = _int32(arguments[8], line)
        temperature = floats(temperatures, row + 1)[row]
        seed = carray(pointer(seeds), (row + 1,), np.int64)[row]
        at = logits + line * vocab * size_of(kind)
        if temperature < greedy_below:
            token = _likeliest(at, kind, vocab, numbers)
        else:
            token = _drawn(at, kind, vocab, hashes, seed, position, temperature, numbers, limits)
        _put(arguments[13], line, token)
        _put(arguments[11], row * width + position, max(token, 0))


@inner
def _int32(at: int, index: int) -> int:
    return np.int64(carray(pointer(at), (index + 1,), np.int32)[index])


@inner
def _put(at: int, index: int, value: int) -> None:
    carray(pointer(at), (index + 1,), np.int32)[index] = value


@inner
def _stretch(logits: int, kind: int, first: int, count: int, numbers: np.ndarray) -> int:
    """The address of `count` logits from the token `first` on, as floats, with what can never be
    drawn up to a whole vector."""
    at = logits + first * size_of(kind)
    if kind == FLOAT32 and count % LANES == 0:
        return at
    widen(at, kind, count, numbers.ctypes.data)
    for i in range(count, -(-count // LANES) * LANES):
        numbers[i] = -np.inf
    return numbers.ctypes.data


@inner
def _likeliest(logits: int, kind: int, vocab: int, numbers: np.ndarray) -> int:
    """The first token with the largest logit; -1 if that is not finite or some logit is NaN."""
    best, token, nan = np.float32(-np.inf), -1, vector.spread(np.float32(0))
    for first in range(0, vocab, _STRETCH):
        count = min(_STRETCH, vocab - first)
        at = _stretch(logits, kind, first, count, numbers)
        most = vector.spread(np.float32(-np.inf))
        for i in range(0, count, LANES):
            some = vector.load(at, i)
            most, nan = vector.larger(some, most), vector.or_nan(nan, some)
        largest = vector.largest(most)
        if largest > best:
            best, token = largest, first + _first(floats(at, count), largest)
    return token if _is_finite(best, nan) else -1


@inner
def _first(numbers: np.ndarray, number: np.float32) -> int:
    i = 0
    while numbers[i] != number:
        i += 1
    return i


@inner
def _is_finite(largest: np.float32, nan: Any) -> bool:
    return np.isfinite(largest) and not np.isnan(vector.total(nan))


@inner
def _drawn(
    logits: int,
    kind: int,
    vocab: int,
    hashes: int,
    seed: int,
    position: int,
    temperature: np.float32,
    numbers: np.ndarray,
    limits: np.ndarray,
) -> int:
    """The first token with the largest score; -1 as `_likeliest`."""
    key0, key1 = _keys(seed, position)
    best, token = np.float32(-np.inf), 0
    divisor = vector.spread(temperature)
    largest, nan = vector.spread(np.float32(-np.inf)), vector.spread(np.float32(0))
    for first in range(0, vocab, _STRETCH):
        count = min(_STRETCH, vocab - first)
        at = _stretch(logits, kind, first, count, numbers)
        most = vector.spread(np.float32(-np.inf))
        for i in range(0, count, LANES):
            some = vector.load(at, i)
            largest, nan = vector.larger(some, largest), vector.or_nan(nan, some)
            limit = noise_limits(hashes, first + i, key0, key1)
            limit = vector.add(vector.divide(some, divisor), limit)
            vector.store(limits.ctypes.data, i, limit)
            most = vector.larger(limit, most)
        limit = vector.largest(most)
        if not limit >= best or limit == -np.inf:  # no token has it where all are NaN
            continue
        # Its likeliest token first, so that hardly another has to be looked at.
        some, bits = floats(at, count), carray(pointer(hashes), (first + count,), np.uint32)
        likeliest = _first(limits, limit)
        for i in range(-1, count):
            j = likeliest if i < 0 else i
            if not limits[j] >= best:
                continue
            score = some[j] / temperature + _noise(bits[first + j], key0, key1)
            if score > best or (score == best and first + j < token):
                best, token = score, first + j
    return token if _is_finite(vector.largest(largest), nan) else -1


@inner
def _mix(h: np.uint32) -> np.uint32:
    h = np.uint32(h ^ (h >> np.uint32(16)))
    h = np.uint32(h * np.uint32(noise.MIX_1))
    h = np.uint32(h ^ (h >> np.uint32(13)))
    h = np.uint32(h * np.uint32(noise.MIX_2))
    return np.uint32(h ^ (h >> np.uint32(16)))


@inner
def _keys(seed: int, position: int) -> tuple[np.uint32, np.uint32]:
    low, high = np.uint32(seed & 0xFFFFFFFF), np.uint32((seed >> 32) & 0xFFFFFFFF)
    a = _mix(np.uint32(low + np.uint32(noise.GOLDEN)))
    b = _mix(np.uint32(high ^ a))
    key0 = _mix(np.uint32(np.uint32(position) + b))
    return key0, _mix(np.uint32(key0 ^ a))


@inner
def _noise(token_hash: np.uint32, key0: np.uint32, key1: np.uint32) -> np.float32:
    bits = _mix(np.uint32(np.uint32(token_hash + key0) ^ key1))
    uniform = (np.float32(bits >> np.uint32(9)) + np.float32(0.5)) * np.float32(2.0**-23)
    return -np.float32(math.log(-np.float32(math.log(uniform))))
