"""Sampling on the device: greedy, or the Gumbel maximum of a seeded temperature.

Programs scan stretches of a row's vocabulary for the best score and its lowest token id; a second
kernel takes the best of a row's stretches. A maximum has no rounding, so the result does not depend
on how the row is cut. The noise is that of `kernels.noise`: the same integers, unsigned.
"""

import torch
import triton
import triton.language as tl

from kernels import noise
from kernels.launch import next_power_of_2

STRETCH = 4096

GOLDEN = tl.constexpr(noise.GOLDEN)
TOKEN_STEP = tl.constexpr(noise.TOKEN_STEP)
MIX_1 = tl.constexpr(noise.MIX_1)
MIX_2 = tl.constexpr(noise.MIX_2)
MIN_TEMPERATURE = tl.constexpr(noise.MIN_TEMPERATURE)


@triton.jit
def mix(h):
    h ^= h >> 16
    h *= MIX_1
    h ^= h >> 13
    h *= MIX_2
    return h ^ (h >> 16)


@triton.jit
def noise_bits(seed, position, tokens):
    """uint32 hash bits of int32 token ids, for one seed (int64) and position (int32)."""
    a = mix((seed & 0xFFFFFFFF).to(tl.uint32) + GOLDEN)
    b = mix(((seed >> 32) & 0xFFFFFFFF).to(tl.uint32) ^ a)
    key0 = mix(position.to(tl.uint32) + b)
    key1 = mix(key0 ^ a)
    return mix((mix(tokens.to(tl.uint32) * TOKEN_STEP) + key0) ^ key1)


@triton.jit
def best_of_stretch_kernel(
    logits, temperatures, seeds, positions, best_scores, best_ids, bad, vocab,
    STRETCH: tl.constexpr,
):  # fmt: skip
    row, stretch = tl.program_id(0), tl.program_id(1)
    tokens = stretch * STRETCH + tl.arange(0, STRETCH)
    inside = tokens < vocab
    line = logits + row.to(tl.int64) * vocab
    scores = tl.load(line + tokens, mask=inside, other=float("-inf")).to(tl.float32)
    # NaN, or +inf: no maximum to speak of.
    is_bad = tl.max(((scores != scores) | (scores == float("inf"))).to(tl.int32), axis=0)
    temperature = tl.load(temperatures + row)
    if temperature >= MIN_TEMPERATURE:
        bits = noise_bits(tl.load(seeds + row), tl.load(positions + row), tokens)
        uniform = ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
        scores = scores / temperature - tl.log(-tl.log(uniform))
    top = tl.max(scores, axis=0)
    slot = row * tl.num_programs(1) + stretch
    tl.store(best_scores + slot, top)
    tl.store(best_ids + slot, tl.min(tl.where(scores == top, tokens, 2147483647), axis=0))
    tl.store(bad + slot, is_bad)


@triton.jit
def best_of_row_kernel(best_scores, best_ids, bad, ids, non_finite, stretches, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < stretches
    slots = row * stretches + columns
    scores = tl.load(best_scores + slots, mask=inside, other=float("-inf"))
    tokens = tl.load(best_ids + slots, mask=inside, other=2147483647)
    top = tl.max(scores, axis=0)
    is_bad = tl.max(tl.load(bad + slots, mask=inside, other=0), axis=0) > 0
    is_bad = is_bad | (top == float("-inf"))
    best = tl.min(tl.where(scores == top, tokens, 2147483647), axis=0)
    tl.store(ids + row, tl.where(is_bad, 0, best))
    tl.store(non_finite + row, is_bad)


def sample(
    logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.reference.sample`."""
    rows, vocab = logits.shape
    device = logits.device
    ids = torch.empty(rows, dtype=torch.int32, device=device)
    non_finite = torch.empty(rows, dtype=torch.bool, device=device)
    if rows == 0:
        return ids, non_finite
    stretches = triton.cdiv(vocab, STRETCH)
    best_scores = torch.empty((rows, stretches), dtype=torch.float32, device=device)
    best_ids = torch.empty((rows, stretches), dtype=torch.int32, device=device)
    bad = torch.empty((rows, stretches), dtype=torch.int32, device=device)
    best_of_stretch_kernel[(rows, stretches)](
        logits, temperatures, seeds, positions, best_scores, best_ids, bad, vocab,
        STRETCH=STRETCH, num_warps=8,
    )  # fmt: skip
    best_of_row_kernel[(rows,)](
        best_scores, best_ids, bad, ids, non_finite, stretches,
        BLOCK=next_power_of_2(stretches), num_warps=1,
    )  # fmt: skip
    return ids, non_finite
