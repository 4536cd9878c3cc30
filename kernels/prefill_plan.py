"""The work of a step's prompt chunks, listed once for all layers: a tile of queries is an item.

The programs of the prefill kernel find their queries in the list, so their number follows the
tokens and sequences that there may be, not how these are divided: a CUDA graph captured once is
right for every such step.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.pdl import follow, pdl_options

BLOCK = 128  # sequences looked at together
ITEM = 4  # int32 values of an item: its first token, its queries, the first one's position, row


@dataclass(frozen=True)
class PrefillPlan:
    """What `prefill_plan_kernel` writes."""

    items: torch.Tensor  # int32 [capacity, 4]
    count: torch.Tensor  # int32 [1], of the items

    @property
    def capacity(self) -> int:
        return self.items.shape[0]


# One compiled kernel for all counts and places in a buffer: none is compiled in mid-service.
@triton.jit(
    do_not_specialize=["sequences"],
    do_not_specialize_on_alignment=["rows", "query_starts", "context_lens"],
)
def prefill_plan_kernel(
    rows, query_starts, context_lens, items, count, sequences,
    QUERIES: tl.constexpr, ITEM: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    total = 0
    for start in range(0, sequences, BLOCK):
        index = start + tl.arange(0, BLOCK)
        real = index < sequences
        first_token = tl.load(query_starts + index, mask=real, other=0)
        query_len = tl.load(query_starts + index + 1, mask=real, other=0) - first_token
        history = tl.load(context_lens + index, mask=real, other=0) - query_len
        row = tl.load(rows + index, mask=real, other=0)
        tiles = tl.cdiv(query_len, QUERIES)
        ends = total + tl.cumsum(tiles, axis=0)
        for tile in range(0, tl.max(tiles, axis=0)):
            # A sequence's last queries read the most: they come first.
            entry = items + (ends - 1 - tile) * ITEM
            here = tile < tiles
            first_query = tile * QUERIES
            tl.store(entry, first_token + first_query, mask=here)
            tl.store(entry + 1, tl.minimum(query_len - first_query, QUERIES), mask=here)
            tl.store(entry + 2, history + first_query, mask=here)
            tl.store(entry + 3, row, mask=here)
        total += tl.sum(tiles, axis=0)
    tl.store(count, total)


def list_tiles(
    rows: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    most_tokens: int,
    queries: int,
) -> PrefillPlan:
    """Tiles of up to `queries` queries of the sequences, which have at most `most_tokens`."""
    sequences, device = rows.shape[0], rows.device
    capacity = most_tokens // queries + sequences
    items = torch.empty((capacity, ITEM), dtype=torch.int32, device=device)
    count = torch.empty(1, dtype=torch.int32, device=device)
    if sequences:
        prefill_plan_kernel[(1,)](
            rows, query_starts, context_lens, items, count, sequences,
            QUERIES=queries, ITEM=ITEM, BLOCK=BLOCK, num_warps=4, **pdl_options(sequences),
        )  # fmt: skip
    return PrefillPlan(items, count)
