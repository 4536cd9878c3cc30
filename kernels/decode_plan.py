"""The work of a step's decodes, listed once for all layers: a split of a sequence is an item.

Programs of the decode kernel walk the list, so their number need not follow the lengths: a CUDA
graph captured once is right for every context, and no program is launched in vain for a short
sequence beside a long one.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.attention_sizes import SPLIT
from kernels.launch import next_power_of_2
from kernels.pdl import follow, pdl_options

ITEM = 4  # int32 values of an item: sequence, split, context length, row


@dataclass(frozen=True)
class DecodePlan:
    """What `decode_plan_kernel` writes. An item's results are kept at its index."""

    items: torch.Tensor  # int32 [capacity, 4]
    first_items: torch.Tensor  # int32 [s], of each sequence
    count: torch.Tensor  # int32 [1], of the items

    @property
    def capacity(self) -> int:
        return self.items.shape[0]


@triton.jit(
    do_not_specialize=["sequences", "capacity"],
    do_not_specialize_on_alignment=["rows", "context_lens"],
)
def decode_plan_kernel(
    rows, context_lens, items, first_items, count, sequences, capacity,
    SPLIT: tl.constexpr, ITEM: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    index = tl.arange(0, BLOCK)
    real = index < sequences
    contexts = tl.load(context_lens + index, mask=real, other=0)
    row = tl.load(rows + index, mask=real, other=0)
    # A sequence of no context has an item too: its output must be written.
    splits = tl.where(real & (contexts >= 0), tl.maximum(tl.cdiv(contexts, SPLIT), 1), 0)
    firsts = tl.cumsum(splits, axis=0) - splits
    tl.store(first_items + index, firsts, mask=real)
    tl.store(count, tl.minimum(tl.sum(splits, axis=0), capacity))
    for split in range(0, tl.max(splits, axis=0)):
        place = firsts + split
        here = (split < splits) & (place < capacity)
        entry = items + place * ITEM
        tl.store(entry, index, mask=here)
        tl.store(entry + 1, tl.zeros_like(index) + split, mask=here)
        tl.store(entry + 2, contexts, mask=here)
        tl.store(entry + 3, row, mask=here)


def most_items(sequences: int, total_context: int) -> int:
    """Splits of `sequences` decodes whose context lengths add up to at most `total_context`."""
    return total_context // SPLIT + sequences


def plan_decode(
    k_pool: torch.Tensor,
    block_tables: torch.Tensor,  # noqa: ARG001 - of other faces
    rows: torch.Tensor,
    context_lens: torch.Tensor,
    total_context: int,
) -> DecodePlan:
    """See `kernels.Ops`."""
    sequences, device = rows.shape[0], k_pool.device
    capacity = most_items(sequences, total_context)
    items = torch.empty((capacity, ITEM), dtype=torch.int32, device=device)
    first_items = torch.empty(sequences, dtype=torch.int32, device=device)
    count = torch.empty(1, dtype=torch.int32, device=device)
    if sequences:
        decode_plan_kernel[(1,)](
            rows, context_lens, items, first_items, count, sequences, capacity,
            SPLIT=SPLIT, ITEM=ITEM, BLOCK=next_power_of_2(max(sequences, 32)), num_warps=4,
            **pdl_options(sequences),
        )  # fmt: skip
    return DecodePlan(items, first_items, count)
