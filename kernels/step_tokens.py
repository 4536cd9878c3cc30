"""The tokens that a step computes, read from its rows, and their positions."""

import torch
import triton
import triton.language as tl

from kernels.pdl import follow, pdl_options

BLOCK = 32  # tokens of a program
SEARCH = 128  # sequences that it compares them with at a time


@triton.jit(
    do_not_specialize=["sequences", "num_tokens"],
    do_not_specialize_on_alignment=["rows", "query_starts", "context_lens"],
)
def step_tokens_kernel(
    tokens, rows, query_starts, context_lens, token_ids, positions, width, sequences, num_tokens,
    BLOCK: tl.constexpr, SEARCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sequence = tl.zeros_like(token)  # the one that owns it: so many end before it
    for start in range(0, sequences, SEARCH):
        index = start + tl.arange(0, SEARCH)
        end = tl.load(query_starts + 1 + index, mask=index < sequences, other=2147483647)
        sequence += tl.sum((end[None, :] <= token[:, None]).to(tl.int32), axis=1)
    owned = sequence < sequences
    end = tl.load(query_starts + 1 + sequence, mask=owned, other=0)
    position = tl.load(context_lens + sequence, mask=owned, other=0) - end + token
    position = tl.where(owned, position, 0)
    line = tokens + tl.load(rows + sequence, mask=owned, other=0).to(tl.int64) * width
    value = tl.load(line + position, mask=owned, other=0)
    inside = token < num_tokens
    tl.store(token_ids + token, value, mask=inside)
    tl.store(positions + token, position, mask=inside)


def step_tokens(
    tokens: torch.Tensor,
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    num_tokens: int,
    max_query_len: int,  # noqa: ARG001 - of other faces
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.reference.step_tokens`."""
    token_ids, positions = (
        torch.empty(num_tokens, dtype=torch.int32, device=tokens.device) for _ in range(2)
    )
    if num_tokens:
        step_tokens_kernel[(triton.cdiv(num_tokens, BLOCK),)](
            tokens, rows, query_starts, context_lens, token_ids, positions, tokens.shape[1],
            rows.shape[0], num_tokens, BLOCK=BLOCK, SEARCH=SEARCH, **pdl_options(num_tokens),
        )  # fmt: skip
    return token_ids, positions
