"""Sampling on the device: greedy, or the Gumbel maximum of a seeded temperature.

Programs scan stretches of a line's vocabulary for the best score and its lowest token id; a second
kernel takes the best of a line's stretches and writes it into the row. A maximum has no rounding,
so the result does not depend on how the line is cut. The noise is that of `kernels.noise`: the same
integers, unsigned.
"""

import torch
import triton
import triton.language as tl

from kernels import noise
from kernels.launch import next_power_of_2
from kernels.pdl import follow, pdl_options

STRETCH = 4096  # at least
FEW_LINES = 16

GOLDEN = tl.constexpr(noise.GOLDEN)
TOKEN_STEP = tl.constexpr(noise.TOKEN_STEP)
MIX_1 = tl.constexpr(noise.MIX_1)
MIX_2 = tl.constexpr(noise.MIX_2)
MIN_TEMPERATURE = tl.constexpr(noise.MIN_TEMPERATURE)
LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


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


@triton.jit(do_not_specialize_on_alignment=["rows", "positions"])
def best_of_stretch_kernel(
    logits, rows, positions, temperatures, seeds, best_scores, best_ids, vocab,
    STRETCH: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    line, stretch = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + line)
    temperature = tl.load(temperatures + row)
    seed, position = tl.load(seeds + row), tl.load(positions + line)
    best = tl.full((TILE,), float("-inf"), tl.float32)
    ids = tl.zeros((TILE,), tl.int32)
    for first in range(0, STRETCH, TILE):
        candidates = stretch * STRETCH + first + tl.arange(0, TILE)
        source = logits + line.to(tl.int64) * vocab + candidates
        scores = tl.load(source, mask=candidates < vocab, other=float("-inf")).to(tl.float32)
        is_bad = (scores != scores) | (scores == float("inf"))
        if temperature >= MIN_TEMPERATURE:
            bits = noise_bits(seed, position, candidates)
            uniform = ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
            scores = scores / temperature - tl.log(-tl.log(uniform))
            scores = tl.minimum(scores, LARGEST)
        # What is no number, or no maximum, wins: it says that the line is bad.
        scores = tl.where(is_bad, float("inf"), scores)
        better = scores > best
        best = tl.where(better, scores, best)
        ids = tl.where(better, candidates, ids)
    top = tl.max(best, axis=0)
    slot = line * tl.num_programs(1) + stretch
    tl.store(best_scores + slot, top)
    tl.store(best_ids + slot, tl.min(tl.where(best == top, ids, 2147483647), axis=0))


@triton.jit(do_not_specialize_on_alignment=["rows", "positions", "out"])
def best_of_line_kernel(
    best_scores, best_ids, rows, positions, tokens, out, stretches, width,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    line = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < stretches
    slots = line * stretches + columns
    scores = tl.load(best_scores + slots, mask=inside, other=float("-inf"))
    candidates = tl.load(best_ids + slots, mask=inside, other=2147483647)
    top = tl.max(scores, axis=0)
    is_bad = (top == float("inf")) | (top == float("-inf"))
    best = tl.min(tl.where(scores == top, candidates, 2147483647), axis=0)
    # 64 bits before the multiply: rows * width may pass 2**31.
    place = tl.load(rows + line).to(tl.int64) * width + tl.load(positions + line)
    tl.store(tokens + place, tl.where(is_bad, 0, best))
    tl.store(out + line, tl.where(is_bad, -1, best))


def cut(lines: int) -> dict[str, int]:
    """How lines are divided among programs (measured on an H200): of many, longer stretches in
    tiles so small that a program takes few registers, which many at a time have to share."""
    if lines <= FEW_LINES:
        return {"STRETCH": STRETCH, "TILE": STRETCH, "num_warps": 8}
    return {"STRETCH": 2 * STRETCH, "TILE": STRETCH // 4, "num_warps": 4}


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
    device = logits.device
    out = torch.empty(lines, dtype=torch.int32, device=device) if out is None else out
    if lines == 0:
        return out
    config = cut(lines)
    stretches = triton.cdiv(vocab, config["STRETCH"])
    best_scores = torch.empty((lines, stretches), dtype=torch.float32, device=device)
    best_ids = torch.empty((lines, stretches), dtype=torch.int32, device=device)
    best_of_stretch_kernel[(lines, stretches)](
        logits, rows, positions, temperatures, seeds, best_scores, best_ids, vocab,
        **config, **pdl_options(lines),
    )  # fmt: skip
    best_of_line_kernel[(lines,)](
        best_scores, best_ids, rows, positions, tokens, out, stretches, tokens.shape[1],
        BLOCK=next_power_of_2(stretches), num_warps=1, **pdl_options(lines),
    )  # fmt: skip
    return out
