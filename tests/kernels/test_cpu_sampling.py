"""The compiled sampler: the oracle's ids at every border; the limits that save it logarithms."""

import ctypes
import math
import mmap
from typing import Any

import numpy as np
import pytest
import torch
from numba import carray

from kernels import cpu, noise, reference, vector
from kernels.compiled import inner, pointer
from kernels.cpu_sampling import _drawn, _noise
from kernels.vector import LANES
from kernels.vector_noise import noise_limits
from tests.kernels.cases import randn

TEMPERATURES = (0.0, 1.0, 0.01, 0.7, 2.0, 100.0, noise.MIN_TEMPERATURE, 1.3)
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"]
)


def drawn(sample: Any, logits: torch.Tensor, temperatures: torch.Tensor, seed: int) -> list:
    """Answers, and the tokens of all rows, of which each line has another."""
    generator, lines = torch.Generator().manual_seed(seed), len(logits)
    rows = torch.randperm(lines, generator=generator).int()
    positions = torch.randint(0, 7, (lines,), generator=generator).int()
    seeds = torch.randint(-(2**62), 2**62, (lines,), generator=generator)
    tokens = torch.full((lines, 7), -5, dtype=torch.int32)
    answers = sample(logits, rows, positions, temperatures[rows.argsort()], seeds, tokens)
    return [answers.tolist(), tokens.tolist()]


def check(logits: torch.Tensor, temperatures: torch.Tensor, seed: int = 0) -> list[int]:
    """The oracle's answers, which are ours."""
    answers, tokens = drawn(cpu.sample, logits, temperatures, seed)
    assert [answers, tokens] == drawn(reference.sample, logits, temperatures, seed)
    return answers


@DTYPES
@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 2047, 2048, 2049, 4096, 49_153])
def test_ids_are_the_oracles_whatever_the_vocabulary(dtype: torch.dtype, vocab: int) -> None:
    for scale in (0.0, 1.0, 8.0):
        logits = (scale * randn(8, vocab, dtype=torch.float32)).to(dtype)
        check(logits, torch.tensor(TEMPERATURES), seed=vocab)


@DTYPES
def test_a_line_is_flagged_by_any_nan_and_by_a_largest_that_is_not_finite(
    dtype: torch.dtype,
) -> None:
    places = (0, 15, 16, 2046, 2047, 2048, 2500, 2501)
    for bad, flagged in ((math.nan, True), (math.inf, True), (-math.inf, False)):
        for temperature in (0.0, 1.0):
            logits = randn(len(places), 2502, dtype=dtype)
            for line, place in zip(logits, places, strict=True):
                line[place] = bad
            answers = check(logits, torch.full((len(places),), temperature))
            assert [answer == -1 for answer in answers] == [flagged] * len(places)
            assert all(a != place for a, place in zip(answers, places, strict=True))
    nothing = torch.full((2, 40), -math.inf, dtype=dtype)
    assert check(nothing, torch.tensor([0.0, 1.0])) == [-1, -1]


def before_a_guard(count: int) -> np.ndarray:
    """Floats that end where a page begins that nobody may touch."""
    size = -(-4 * count // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, size + mmap.PAGESIZE)
    guard = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + size
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, 0) == 0
    return np.frombuffer(pages, np.float32, count, size - 4 * count)


def test_a_line_without_numbers_is_flagged_and_its_limits_read_to_their_end_only() -> None:
    """Of NaN none is the largest that is looked for."""
    numbers, limits = before_a_guard(2048), before_a_guard(2048)
    logits, hashes = torch.full((4096,), math.nan), noise.token_hashes(torch.arange(4096).int())
    warm = np.float32(1)
    places = logits.data_ptr(), 0, 4096, hashes.data_ptr()
    assert _drawn(*places, 5, 3, warm, numbers, limits) == -1
    logits[2048:] = 1.0
    assert _drawn(*places, 5, 3, warm, numbers, limits) == -1
    assert check(torch.full((2, 49_152), math.nan), torch.tensor([1.0, 0.0])) == [-1, -1]


def test_one_token_that_can_be_drawn_is() -> None:
    for place in (0, 15, 16, 2047, 2048, 4500):
        logits = torch.full((4, 4501), -math.inf)
        logits[:, place] = -1e30
        assert check(logits, torch.tensor([0.0, 1.0, 100.0, 0.01])) == [place] * 4


def test_scores_beyond_the_floats_are_ties() -> None:
    """Of infinities the first wins."""
    logits = torch.full((2, 3000), 3e38)
    logits[0, :2100] = 1.0
    logits[1] = -3e38
    cold = torch.full((2,), noise.MIN_TEMPERATURE)
    assert check(logits, cold) == [2100, 0]


def test_equal_logits_are_drawn_by_the_noise_alone() -> None:
    logits, warm = torch.zeros(64, 49_152), torch.ones(64)
    answers = {seed: check(logits, warm, seed) for seed in range(3)}
    assert len({answer for some in answers.values() for answer in some}) > 180


def test_only_lines_that_lie_one_after_the_other_are_read() -> None:
    with pytest.raises(TypeError, match=r"must be of torch\.float32 and contiguous"):
        check(torch.zeros(4, 30)[:, :20], torch.zeros(4))


@inner
def _limits(hashes: int, count: int, out: int) -> None:
    for i in range(0, count, LANES):
        vector.store(out, i, noise_limits(hashes, i, np.uint32(0), np.uint32(0)))


@inner
def _noises(hashes: int, count: int, out: int) -> None:
    words = carray(pointer(hashes), (count,), np.uint32)
    floats = carray(pointer(out), (count,), np.float32)
    for i in range(count):
        floats[i] = _noise(words[i], np.uint32(0), np.uint32(0))


def _unmixed(bits: np.ndarray) -> np.ndarray:
    """What `noise.mix` makes these of: its steps backwards."""
    bits = bits ^ bits >> 16
    bits = bits * np.uint32(pow(noise.MIX_2, -1, 2**32))
    bits = bits ^ bits >> 13 ^ bits >> 26
    bits = bits * np.uint32(pow(noise.MIX_1, -1, 2**32))
    return bits ^ bits >> 16


def test_no_noise_passes_its_limit_which_is_near_where_noise_is_large() -> None:
    """Of all the noises that there are."""
    bits = np.arange(1 << 23, dtype=np.uint32) << np.uint32(9)
    hashes = np.ascontiguousarray(_unmixed(bits))
    limits, noises = np.empty(len(bits), np.float32), np.empty(len(bits), np.float32)
    _limits(hashes.ctypes.data, len(bits), limits.ctypes.data)
    _noises(hashes.ctypes.data, len(bits), noises.ctypes.data)
    expected = noise.gumbel(torch.from_numpy(bits.view(np.int32))).numpy()
    assert np.allclose(noises, expected, rtol=1e-6, atol=1e-6)
    gaps = limits - np.maximum(noises, expected)
    assert gaps.min() > 0
    assert gaps[expected > 3].max() < 0.1
    assert gaps[expected > 0].max() < 0.7
