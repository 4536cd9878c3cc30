"""The CPU face: products by oneDNN or our own kernel, what lies between them compiled, the rest by
few, large torch ops; and results of a row that no other row can change.

Every function has the signature of its namesake in `kernels.reference`.
"""

import torch
from torch.nn.functional import pad

from kernels import cpu_product
from kernels.cpu_attention import (
    paged_attention_decode,
    paged_attention_prefill,
    plan_decode,
    plan_prefill,
)
from kernels.cpu_linear import linear, pack_weight
from kernels.cpu_penalties import penalize
from kernels.cpu_row_ops import rms_norm, rope_and_write_kv, silu_and_mul
from kernels.cpu_sampling import sample
from kernels.packed_weight import PackedWeight

_STRETCH = 64  # tokens of a line whose maximum is looked at first

__all__ = [
    "add_linear",
    "gather_rows",
    "linear",
    "logits",
    "norm_gated_linear",
    "norm_linear",
    "pack_weight",
    "paged_attention_decode",
    "paged_attention_prefill",
    "penalize",
    "plan_decode",
    "plan_prefill",
    "rms_norm",
    "rope_and_write_kv",
    "sample",
    "scatter",
    "silu_and_mul",
    "step_tokens",
    "top_logprobs",
]


def norm_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    if cpu_product.packed(weight):
        return cpu_product.multiply(x, weight, bias, gain=gain, eps=eps)
    return linear(rms_norm(x, gain, eps), weight, bias)


def logits(x: torch.Tensor, gain: torch.Tensor, eps: float, weight: PackedWeight) -> torch.Tensor:
    """See `kernels.Ops`. fp32 where the product is our own kernel's."""
    if cpu_product.packed(weight):
        return cpu_product.multiply(x, weight, gain=gain, eps=eps, rounded=False)
    return norm_linear(x, gain, eps, weight)


def norm_gated_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    if cpu_product.packed(weight):
        return cpu_product.multiply(x, weight, bias, gain=gain, eps=eps, gated=True)
    return silu_and_mul(norm_linear(x, gain, eps, weight, bias))


def add_linear(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, residual: torch.Tensor
) -> torch.Tensor:
    return linear(x, weight, bias, residual)


def top_logprobs(
    logits: torch.Tensor, lines: torch.Tensor, sampled: torch.Tensor, count: int
) -> torch.Tensor:
    out = torch.zeros((lines.shape[0], 2, 1 + count), dtype=torch.int32)
    for place, line in zip(out, lines.tolist(), strict=True):
        if sampled[line] < 0:
            continue
        scores = logits[line].float()
        place[0, :1] = sampled[line]
        if count:
            place[0, 1:] = _most_likely(scores, count)
        place[1] = scores.log_softmax(-1)[place[0].long()].view(torch.int32)
    return out


def _most_likely(scores: torch.Tensor, count: int) -> torch.Tensor:
    """int64 [count]: ids of the largest of scores [vocab], of equals the lowest, which torch's own
    selection does not promise.

    They are in the stretches whose maxima are among the `count` largest maxima, all that are equal
    to the last of these included, and behind the last whole stretch.
    """
    whole = scores.shape[0] // _STRETCH * _STRETCH
    ids = torch.arange(scores.shape[0])
    maxima = scores[:whole].view(-1, _STRETCH).amax(-1)
    if maxima.shape[0] > count:
        some = (maxima >= maxima.topk(count).values[-1]).nonzero().view(-1)
        ids = torch.cat((ids[:whole].view(-1, _STRETCH)[some].view(-1), ids[whole:]))
    return ids[scores[ids].sort(descending=True, stable=True).indices[:count]]


def gather_rows(
    table: torch.Tensor, index: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    return torch.index_select(table, 0, index, out=out)


def scatter(out: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> None:
    out.index_copy_(0, at, values)


def step_tokens(
    tokens: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    num_tokens: int,
    max_query_len: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    line_starts = rows.long() * tokens.shape[1]
    if max_query_len == 1:
        positions = context_lens - 1
    else:
        # A token's position less its index in the step is one value per sequence.
        lens, owned = query_starts.diff(), int(query_starts[-1])
        positions = torch.arange(owned, dtype=torch.int32)
        positions += (context_lens - query_starts[1:]).repeat_interleave(lens, output_size=owned)
        line_starts = line_starts.repeat_interleave(lens, output_size=owned)
    ids = tokens.view(-1).index_select(0, line_starts + positions)
    if pads := num_tokens - ids.shape[0]:
        return pad(ids, (0, pads)), pad(positions, (0, pads))
    return ids, positions
