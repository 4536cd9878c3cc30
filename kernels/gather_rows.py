"""Lines of a table by their index: embeddings of tokens, or the tokens of a step that sample."""

import torch
import triton
import triton.language as tl

from kernels.launch import next_power_of_2
from kernels.pdl import follow, pdl_options

MOST_COLUMNS = 2048


@triton.jit(do_not_specialize_on_alignment=["index"])
def gather_rows_kernel(
    table, index, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    follow(PDL)
    line = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    # 64 bits before the multiply: vocab * hidden may pass 2**31.
    source = tl.load(index + line).to(tl.int64) * WIDTH
    value = tl.load(table + source + columns, mask=inside)
    tl.store(out + line * WIDTH + columns, value, mask=inside)


def gather_rows(
    table: torch.Tensor, index: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See `kernels.reference.gather_rows`."""
    lines, width = index.shape[0], table.shape[1]
    if out is None:
        out = torch.empty((lines, width), dtype=table.dtype, device=table.device)
    if lines:
        block = min(next_power_of_2(width), MOST_COLUMNS)
        gather_rows_kernel[(lines, triton.cdiv(width, block))](
            table, index, out, WIDTH=width, BLOCK=block, num_warps=4, **pdl_options(lines)
        )
    return out
