"""Programmatic dependent launch: a kernel's programs start while the one before drains.

A kernel launched with `pdl_options` calls `follow` in every program. Before that it writes nothing,
and reads nothing that the kernel launched right before it may write; after one that calls
`follow_eagerly`, nothing at all.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.launch import INTERPRETED

# Of a batch beyond, a card has enough to do, and programs that wait take the place of others
# (measured on an H200: 2 % at 256 rows). There a kernel's programs start as those of the one
# before end.
MOST_ROWS = 128

# What PDL is: a usual launch; wait for the kernel before; and let the one after start as well.
OFF, WAIT, WAIT_AND_LET = 0, 1, 2


@triton.jit
def follow(PDL: tl.constexpr):
    """Wait until the kernel before has ended, then let the next one's programs start. In this
    order: so a kernel that starts knows that all but the one before it have ended."""
    if PDL >= 1:
        tl.extra.cuda.gdc_wait()
    if PDL == 2:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def follow_eagerly(PDL: tl.constexpr):
    """As `follow`, but the next kernel starts at once. It reads nothing before its own wait:
    by then this kernel has ended, and so have those before."""
    if PDL == 2:
        tl.extra.cuda.gdc_launch_dependents()
    if PDL >= 1:
        tl.extra.cuda.gdc_wait()


def pdl_options(rows: int) -> dict[str, int | bool]:
    """Keywords of the launch of a kernel over `rows` tokens, sequences or lines."""
    mode = (WAIT_AND_LET if rows <= MOST_ROWS else WAIT) if _able() else OFF
    return {"PDL": mode, "launch_pdl": mode != OFF}


@cache
def _able() -> bool:
    """A Hopper card is the first that can."""
    able = not INTERPRETED and torch.cuda.is_available()
    return able and torch.cuda.get_device_capability() >= (9, 0)
