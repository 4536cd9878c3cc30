"""Log-probabilities on the device: of a sampled token and of the most likely ones.

Programs take stretches of a line's vocabulary: the largest logit, the sum of the exponentials below
it, and the stretch's own most likely tokens; a second kernel joins a line's stretches. Where they
are cut depends on the vocabulary alone, so a line's bits do not depend on the others.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import next_power_of_2

STRETCH = 4096
MOST = 20  # tokens beside the sampled one

LAST = tl.constexpr(-(2**63))  # below every key


@triton.jit
def bits_of(value):
    return value.to(tl.int32, bitcast=True)


@triton.jit
def keys_of(scores, candidates):
    """int64 keys of fp32 scores and int32 ids: the larger score first, of equals the lower id. The
    bits of a float, those below the sign inverted in a negative one, order as integers do."""
    bits = bits_of(tl.where(scores == 0, 0.0, scores))  # -0.0 is equal to 0.0
    ordered = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) + (2147483647 - candidates)


@triton.jit
def score_of(key):
    ordered = (key >> 32).to(tl.int32)
    return tl.where(ordered >= 0, ordered, ordered ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def id_of(key):
    return 2147483647 - (key & 0xFFFFFFFF).to(tl.int32)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["lines"])
def top_of_stretch_kernel(
    logits, lines, largest, sums, tops, vocab, count, STRETCH: tl.constexpr
):  # fmt: skip
    place, stretch = tl.program_id(0), tl.program_id(1)
    candidates = stretch * STRETCH + tl.arange(0, STRETCH)
    inside = candidates < vocab
    source = logits + tl.load(lines + place) * vocab + candidates
    scores = tl.load(source, mask=inside, other=float("-inf")).to(tl.float32)
    top = tl.max(scores, axis=0)
    # A stretch of -inf alone adds nothing.
    base = tl.where(top == float("-inf"), 0.0, top)
    slot = place * tl.num_programs(1) + stretch
    tl.store(largest + slot, top)
    tl.store(sums + slot, tl.sum(tl.exp(scores - base), axis=0))
    keys = tl.where(inside, keys_of(scores, candidates), LAST)
    for i in range(count):
        best = tl.max(keys, axis=0)
        tl.store(tops + slot.to(tl.int64) * count + i, best)
        keys = tl.where(keys == best, LAST, keys)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["lines", "sampled"])
def top_of_line_kernel(
    logits, lines, sampled, largest, sums, tops, out, vocab, stretches, count,
    STRETCHES: tl.constexpr, TOPS: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    columns = tl.arange(0, STRETCHES)
    inside = columns < stretches
    tops_of_stretches = tl.load(
        largest + place * stretches + columns, mask=inside, other=float("-inf")
    )
    parts = tl.load(sums + place * stretches + columns, mask=inside, other=0.0)
    top = tl.max(tops_of_stretches, axis=0)
    log_sum = tl.log(tl.sum(parts * tl.exp(tops_of_stretches - top), axis=0))
    line = tl.load(lines + place)
    token = tl.load(sampled + line)
    # A line that is not finite has token -1 and means nothing.
    finite = token >= 0
    score = tl.load(logits + line * vocab + tl.maximum(token, 0)).to(tl.float32)
    ids = out + place.to(tl.int64) * 2 * (1 + count)
    values = ids + 1 + count
    tl.store(ids, tl.where(finite, token, 0))
    tl.store(values, bits_of(tl.where(finite, score - top - log_sum, 0.0)))
    columns = tl.arange(0, TOPS)
    keys = tl.load(
        tops + place.to(tl.int64) * stretches * count + columns,
        mask=columns < stretches * count,
        other=LAST,
    )
    for i in range(count):
        best = tl.max(keys, axis=0)
        tl.store(ids + 1 + i, tl.where(finite, id_of(best), 0))
        value = tl.where(finite, score_of(best) - top - log_sum, 0.0)
        tl.store(values + 1 + i, bits_of(value))
        keys = tl.where(keys == best, LAST, keys)


def top_logprobs(
    logits: torch.Tensor, lines: torch.Tensor, sampled: torch.Tensor, count: int
) -> torch.Tensor:
    """See `kernels.reference.top_logprobs`. Raises ValueError for a count that it cannot take."""
    if not 0 <= count <= MOST:
        raise ValueError(f"count is {count}, must be 0 <= count <= {MOST}")
    places, vocab, device = lines.shape[0], logits.shape[1], logits.device
    out = torch.empty((places, 2, 1 + count), dtype=torch.int32, device=device)
    if places == 0:
        return out
    stretches = triton.cdiv(vocab, STRETCH)
    largest = torch.empty((places, stretches), dtype=torch.float32, device=device)
    sums = torch.empty_like(largest)
    tops = torch.empty((places, stretches, count), dtype=torch.int64, device=device)
    top_of_stretch_kernel[(places, stretches)](
        logits, lines, largest, sums, tops, vocab, count, STRETCH=STRETCH, num_warps=8
    )
    top_of_line_kernel[(places,)](
        logits, lines, sampled, largest, sums, tops, out, vocab, stretches, count,
        STRETCHES=next_power_of_2(stretches), TOPS=next_power_of_2(stretches * MOST), num_warps=4,
    )  # fmt: skip
    return out
