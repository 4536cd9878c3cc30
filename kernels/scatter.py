"""Values to places of a flat tensor: what a step changes of the rows' tokens, tables, settings."""

import torch
import triton
import triton.language as tl

BLOCK = 256


# One compiled kernel for all counts and places in a buffer: none is compiled in mid-service.
@triton.jit(
    do_not_specialize=["count"], do_not_specialize_on_alignment=["at", "values"]
)  # fmt: skip
def scatter_kernel(out, at, values, count, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    place = tl.load(at + index, mask=inside, other=0)
    tl.store(out + place, tl.load(values + index, mask=inside, other=0), mask=inside)


def scatter(out: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> None:
    """See `kernels.reference.scatter`."""
    count = at.shape[0]
    if count:
        scatter_kernel[(triton.cdiv(count, BLOCK),)](out, at, values, count, BLOCK=BLOCK)
