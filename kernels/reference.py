"""The oracle: each op in plain torch, obvious and slow. Every other face is held to it.

Letters in shapes: t tokens, s sequences, hq query heads, hk K/V heads, d head_dim, bs block_size,
R rows, B blocks per row. Arithmetic is fp32, rounded once to the input's dtype.
"""

from collections import Counter

import torch

from kernels.noise import MIN_TEMPERATURE, gumbel, noise_bits, row_keys, token_hashes
from kernels.packed_weight import PackedWeight


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [t, h] / sqrt(mean(x^2) + eps) * weight [h] (Zhang and Sennrich 2019) -> [t, h]."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Half-rotation RoPE (Su et al. 2021, Llama layout): x [t, h, d]; cos, sin [t, d / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


def rope_and_write_kv(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    num_heads: int,
) -> torch.Tensor:
    """Rotate q and k, write k and v at their slots, return q [t, hq, d].

    qkv [t, (hq + 2 hk) d]: query, key, value heads; positions [t] int32; cos_sin [max_pos, d] fp32:
    cosines, then sines; slot_mapping [t] int64; pools [blocks, bs, hk, d] of one layer.
    """
    _, block_size, kv_heads, head_dim = k_pool.shape
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    q, k, v = heads.split((num_heads, kv_heads, kv_heads), dim=1)
    cos, sin = cos_sin[positions.long()].chunk(2, dim=-1)
    k = rotate(k, cos, sin)
    for token, slot in enumerate(slot_mapping.tolist()):
        k_pool[slot // block_size, slot % block_size] = k[token]
        v_pool[slot // block_size, slot % block_size] = v[token]
    return rotate(q, cos, sin)


def gather_context(
    pool: torch.Tensor, block_tables: torch.Tensor, row: int, context_len: int
) -> torch.Tensor:
    """fp32 [context_len, hk, d]: the row's own slots in order of position, and no others."""
    block_size = pool.shape[1]
    tokens = [
        pool[block_tables[row, position // block_size], position % block_size]
        for position in range(context_len)
    ]
    return torch.stack(tokens).float()


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float):
    """One query q [hq, d] over keys and values [c, hk, d], all of them visible -> [hq, d]."""
    group = q.shape[0] // keys.shape[1]
    keys = keys.repeat_interleave(group, dim=1)
    values = values.repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,chd->hc", q.float(), keys) * scale
    return torch.einsum("hc,chd->hd", scores.softmax(dim=-1), values).to(q.dtype)


def paged_attention_decode(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    *,
    max_context_len: int,  # noqa: ARG001 - a launch bound of other faces
    plan: object = None,  # noqa: ARG001
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each query over its row's slots, up to its own context length -> [s, hq, d].

    q [s, hq, d]; pools [blocks, bs, hk, d]; block_tables [R, B], rows [s], context_lens [s] int32.
    A context length of 0 gives zeros. The result is written to `out` [s, hq, d] where it is given.
    """
    out = torch.zeros_like(q) if out is None else out.zero_()
    for i, (row, length) in enumerate(zip(rows.tolist(), context_lens.tolist(), strict=True)):
        if length:
            keys = gather_context(k_pool, block_tables, row, length)
            values = gather_context(v_pool, block_tables, row, length)
            out[i] = _attend(q[i], keys, values, scale)
    return out


def paged_attention_prefill(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    *,
    max_context_len: int,  # noqa: ARG001 - a launch bound of other faces
    plan: object = None,  # noqa: ARG001
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of ragged queries, read through the table -> [t, hq, d].

    q [t, hq, d]; sequence i owns tokens query_starts[i] to query_starts[i + 1], which are the last
    positions of its context; it may own none. The result is written to `out` [t, hq, d] where it is
    given, whose tokens of no sequence are left as they are.
    """
    out = torch.zeros_like(q) if out is None else out
    starts = query_starts.tolist()
    for i, (row, length) in enumerate(zip(rows.tolist(), context_lens.tolist(), strict=True)):
        if starts[i] == starts[i + 1]:
            continue
        keys = gather_context(k_pool, block_tables, row, length)
        values = gather_context(v_pool, block_tables, row, length)
        for token in range(starts[i], starts[i + 1]):
            visible = length - (starts[i + 1] - 1 - token)
            out[token] = _attend(q[token], keys[:visible], values[:visible], scale)
    return out


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [t, 2 i]: gate, then up -> silu(gate) * up [t, i] (SwiGLU, Shazeer 2020)."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def pack_weight(weight: torch.Tensor) -> PackedWeight:
    """weight [n, k] -> the form that `linear` takes."""
    return PackedWeight(weight.shape[0], weight.shape[1], weight.dtype, weight)


def linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [t, k] times the transpose of weight [n, k], plus bias [n] -> [t, n]."""
    out = x.float() @ weight.data.float().T
    return (out if bias is None else out + bias.float()).to(x.dtype)


def norm_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product of the normed input: linear(rms_norm(x, gain [k], eps), weight, bias)."""
    return linear(rms_norm(x, gain, eps), weight, bias)


def norm_gated_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """silu_and_mul(norm_linear(...)): weight [2 n, k] holds gate's lines, then up's -> [t, n]."""
    return silu_and_mul(norm_linear(x, gain, eps, weight, bias))


def add_linear(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, residual: torch.Tensor
) -> torch.Tensor:
    """linear(x, weight, bias) + residual [t, n]; a face may write the result into residual."""
    return linear(x, weight, bias) + residual


def sample(
    logits: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    tokens: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token per line of logits, written into its row -> int32 [s], -1 for a line that is not
    finite, whose row gets token 0.

    logits [s, vocab]; rows [s] int32; positions [s] int32, where the token goes: tokens[row,
    position] of tokens [R, w] int32. Of each row: temperatures [R] fp32, below 1e-5 greedy; seeds
    [R] int64 (the bits of an unsigned seed). The lowest id wins a tie. A line with a NaN, or whose
    maximum is not finite, is not finite; -inf below a finite maximum is a token that cannot be
    drawn. Noise: `kernels.noise` (Gumbel-max, Gumbel 1954).
    """
    lines, vocab = logits.shape
    out = torch.empty(lines, dtype=torch.int32, device=logits.device) if out is None else out
    hashes = token_hashes(torch.arange(vocab, dtype=torch.int32, device=logits.device))
    key0, key1 = row_keys(seeds[rows.long()], positions)
    for i, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        scores = logits[i].float()
        if not torch.isfinite(scores.max()):
            out[i], tokens[row, position] = -1, 0
            continue
        if temperatures[row] >= MIN_TEMPERATURE:
            scores = scores / temperatures[row] + gumbel(noise_bits(key0[i], key1[i], hashes))
        out[i] = tokens[row, position] = (scores == scores.max()).nonzero()[0, 0]
    return out


def penalize(
    logits: torch.Tensor,
    lines: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor,
    prompt_lens: torch.Tensor,
    penalties: torch.Tensor,
    *,
    max_position: int,  # noqa: ARG001 - a launch bound of other faces
) -> torch.Tensor:
    """Some lines of logits [s, vocab] with their rows' penalties -> fp32 [p, vocab].

    lines [p] int64; rows, positions [p] int32: a line's row knows tokens[row, :position] of tokens
    [R, w] int32, of which the first prompt_lens[row] (int32 [R]) are its prompt. penalties [R, 3]
    fp32: repetition, frequency, presence. In this order: the score of each known token is divided
    by repetition if positive and multiplied by it if not (Keskar et al. 2019); that of each token
    of the output is lowered by frequency times how often it is there, then once by presence.
    """
    scores = logits[lines].float()
    for line, row, position in zip(scores, rows.tolist(), positions.tolist(), strict=True):
        known = tokens[row, :position].tolist()
        repetition, frequency, presence = penalties[row]
        for token in set(known):
            value = line[token]
            line[token] = value / repetition if value > 0 else value * repetition
        for token, count in Counter(known[int(prompt_lens[row]) :]).items():
            line[token] -= count * frequency
            line[token] -= presence
    return scores


def top_logprobs(
    logits: torch.Tensor, lines: torch.Tensor, sampled: torch.Tensor, count: int
) -> torch.Tensor:
    """Log-probabilities of some lines of logits [s, vocab] -> int32 [w, 2, 1 + count]: ids, then
    the bits of their fp32 values, the log-softmax of the line.

    lines [w] int64; sampled [s] int32: the token of each line, which comes first; then the `count`
    (0 to vocab) largest logits, the largest first, the lowest id first among equals. Zeros for a
    line whose token is below 0, which means that it is not finite.
    """
    out = torch.zeros((len(lines), 2, 1 + count), dtype=torch.int32)
    for place, line in zip(out, lines.tolist(), strict=True):
        if (token := int(sampled[line])) >= 0:
            scores = logits[line].float()
            order = scores.sort(descending=True, stable=True).indices
            place[0] = torch.tensor([token, *order[:count].tolist()])
            place[1] = scores.log_softmax(-1)[place[0].long()].view(torch.int32)
    return out.to(logits.device)


def gather_rows(
    table: torch.Tensor, index: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """table [n, w], index [t] int32 or int64 -> [t, w]: the lines of the table at the index,
    written to `out` where it is given."""
    if out is None:
        out = torch.empty((index.shape[0], table.shape[1]), dtype=table.dtype, device=table.device)
    for i, line in enumerate(index.tolist()):
        out[i] = table[line]
    return out


def scatter(out: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> None:
    """out[at[i]] = values[i]: out [n], values [t] of its dtype, at [t] int64, no place twice."""
    for place, value in zip(at.tolist(), values, strict=True):
        out[place] = value


def step_tokens(
    tokens: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    num_tokens: int,
    max_query_len: int,  # noqa: ARG001 - a launch bound of other faces
) -> tuple[torch.Tensor, torch.Tensor]:
    """(token ids, positions), both [t] int32, of the last tokens of each sequence's context.

    tokens [R, w] int32; rows, context_lens [s] int32; query_starts [s + 1] int32, from 0 to at most
    t: sequence i owns tokens query_starts[i] to query_starts[i + 1] of the step. Tokens of no
    sequence have id and position 0.
    """
    ids, positions = (torch.zeros(num_tokens, dtype=torch.int32) for _ in range(2))
    starts = query_starts.tolist()
    for i, (row, context) in enumerate(zip(rows.tolist(), context_lens.tolist(), strict=True)):
        first = context - (starts[i + 1] - starts[i])
        ids[starts[i] : starts[i + 1]] = tokens[row, first:context]
        positions[starts[i] : starts[i + 1]] = torch.arange(first, context)
    return ids.to(tokens.device), positions.to(tokens.device)
