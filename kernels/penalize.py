"""Penalties on the device: how often a row's tokens are in its prompt and output, counted over the
vocabulary, and the scores that follow.

Counts are integers, so the order in which programs add them changes nothing. They and the scores
take the same memory, one word for a token: its score is written where its count was read.
"""

import torch
import triton
import triton.language as tl

STRETCH = 4096  # of a line's vocabulary, to a program
TILE = 1024  # of a row's tokens, to a program

# A word counts how often its token is in the output; this bit says that it is in the prompt.
IN_PROMPT = tl.constexpr(1 << 30)


@triton.jit
def clear_counts_kernel(counts, vocab, STRETCH: tl.constexpr):
    line, stretch = tl.program_id(0), tl.program_id(1)
    candidates = stretch * STRETCH + tl.arange(0, STRETCH)
    places = counts + line.to(tl.int64) * vocab + candidates
    tl.store(places, tl.zeros([STRETCH], tl.int32), mask=candidates < vocab)


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=["rows", "positions"])
def count_tokens_kernel(
    rows, positions, tokens, prompt_lens, counts, vocab, width, TILE: tl.constexpr
):  # fmt: skip
    line, tile = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + line).to(tl.int64)
    at = tile * TILE + tl.arange(0, TILE)
    known = at < tl.load(positions + line)
    # 64 bits before the multiply: rows * width may pass 2**31.
    ids = tl.load(tokens + row * width + at, mask=known, other=0)
    in_prompt = at < tl.load(prompt_lens + row)
    places = counts + line.to(tl.int64) * vocab + ids
    tl.atomic_or(places, IN_PROMPT, mask=known & in_prompt, sem="relaxed")
    tl.atomic_add(places, 1, mask=known & (in_prompt == 0), sem="relaxed")


@triton.jit(do_not_specialize_on_alignment=["lines", "rows"])
def penalize_kernel(logits, lines, rows, penalties, counts, vocab, STRETCH: tl.constexpr):
    line, stretch = tl.program_id(0), tl.program_id(1)
    candidates = stretch * STRETCH + tl.arange(0, STRETCH)
    inside = candidates < vocab
    source = logits + tl.load(lines + line) * vocab + candidates
    scores = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    places = counts + line.to(tl.int64) * vocab + candidates
    found = tl.load(places, mask=inside, other=0)
    own = penalties + 3 * tl.load(rows + line).to(tl.int64)
    repetition, frequency, presence = tl.load(own), tl.load(own + 1), tl.load(own + 2)
    repeated = tl.where(scores > 0, scores / repetition, scores * repetition)
    scores = tl.where(found != 0, repeated, scores)
    times = found & (IN_PROMPT - 1)
    lowered = scores - times.to(tl.float32) * frequency - presence
    scores = tl.where(times > 0, lowered, scores)
    tl.store(places, scores.to(tl.int32, bitcast=True), mask=inside)


def penalize(
    logits: torch.Tensor,
    lines: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor,
    prompt_lens: torch.Tensor,
    penalties: torch.Tensor,
    *,
    max_position: int,
) -> torch.Tensor:
    """See `kernels.reference.penalize`; max_position is an upper bound of `positions`."""
    count, vocab = lines.shape[0], logits.shape[1]
    counts = torch.empty((count, vocab), dtype=torch.int32, device=logits.device)
    scores = counts.view(torch.float32)
    if count == 0:
        return scores
    stretches = (count, triton.cdiv(vocab, STRETCH))
    clear_counts_kernel[stretches](counts, vocab, STRETCH=STRETCH, num_warps=8)
    count_tokens_kernel[(count, triton.cdiv(max_position, TILE))](
        rows, positions, tokens, prompt_lens, counts, vocab, tokens.shape[1], TILE=TILE
    )
    penalize_kernel[stretches](
        logits, lines, rows, penalties, counts, vocab, STRETCH=STRETCH, num_warps=8
    )
    return scores
