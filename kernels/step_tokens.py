"""The tokens that a step computes, read from its rows, and their positions."""

import torch
import triton
import triton.language as tl

from kernels.pdl import follow, pdl_options

MOST_TOKENS = 256


@triton.jit(do_not_specialize_on_alignment=["rows", "query_starts", "context_lens"])
def step_tokens_kernel(
    tokens, rows, query_starts, context_lens, token_ids, positions, width, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    sequence = tl.program_id(0)
    start = tl.load(query_starts + sequence)
    query_len = tl.load(query_starts + sequence + 1) - start
    query = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = query < query_len
    position = tl.load(context_lens + sequence) - query_len + query
    line = tokens + tl.load(rows + sequence).to(tl.int64) * width
    tl.store(token_ids + start + query, tl.load(line + position, mask=inside, other=0), mask=inside)
    tl.store(positions + start + query, position, mask=inside)


def step_tokens(
    tokens: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    num_tokens: int,
    max_query_len: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.reference.step_tokens`; max_query_len only bounds the grid."""
    token_ids, positions = (
        torch.empty(num_tokens, dtype=torch.int32, device=tokens.device) for _ in range(2)
    )
    if num_tokens:
        block = 32 if max_query_len <= 32 else MOST_TOKENS
        step_tokens_kernel[(rows.shape[0], triton.cdiv(max_query_len, block))](
            tokens, rows, query_starts, context_lens, token_ids, positions, tokens.shape[1],
            BLOCK=block, num_warps=1, **pdl_options(num_tokens),
        )  # fmt: skip
    return token_ids, positions
