"""The sizes of paged attention's tiles and sums, by shape alone: no neighbour of a row may change
the order in which its sums are made. Measured on an H200."""

import math

# Positions that a program of decode attention adds up.
SPLIT = 256
# Partial results merged at a time. Which of the two depends on the row's own count alone.
FEW, MANY = 4, 32
# Rows of the smallest matrix instruction, to which the queries of a decode program are padded, and
# the bytes that it reads at a position, if its queries leave room for more K/V heads than one.
QUERY_ROWS, LINE_BYTES = 16, 256
# Sequences from which on a decode program takes several K/V heads. A head's sums are the same: it
# has rows of its own, and zeros beside them. (tests/kernels/sum_order.py reads that from what is
# compiled for an H200.)
PACK_FROM = 16
# The same of `kernels.hopper_attention_decode`, where each head has instructions of its own.
HOPPER_PACK_FROM = 64
# Sequences from which on a program that merges partial results takes several heads.
MERGE_SEVERAL_FROM = 128


def packed_heads(sequences: int, kv_heads: int, group: int, head_dim: int) -> int:
    """K/V heads of `group` query heads each that a decode program takes."""
    # A head no wider than there are queries would have its positions divided among warps in another
    # way than several have.
    if sequences < PACK_FROM or head_dim <= QUERY_ROWS or head_dim & (head_dim - 1):
        return 1
    count = 1
    while (
        kv_heads % (2 * count) == 0
        and 2 * count * group <= QUERY_ROWS
        and 2 * count * head_dim * 2 <= LINE_BYTES
    ):
        count *= 2
    return count


def hopper_heads(sequences: int, kv_heads: int, group: int, head_dim: int) -> int:
    """K/V heads of `group` query heads each that a program of `kernels.hopper_attention_decode`
    takes. Two fill a register file's half."""
    several = sequences >= HOPPER_PACK_FROM and head_dim <= 64 and group <= 8
    return 2 if several and kv_heads % 2 == 0 else 1


def hopper_ring(queries: int) -> dict[str, int]:
    """Slots for tiles, and registers of each of a program's 256 threads, by the columns of its
    results: so that a multiprocessor has three programs of few queries, or two of many."""
    return {"SLOTS": 4, "maxnreg": 80} if queries <= 8 else {"SLOTS": 5, "maxnreg": 128}


def hopper_walkers(sequences: int, groups: int, packed: int) -> int:
    """Programs of each group of K/V heads, at most. Few sequences have no more than a card holds at
    a time. Of many, those that it starts as others end even out what items differ in; and each
    meets splits of every place, since their number has no small factor."""
    if sequences < HOPPER_PACK_FROM:
        return -(-384 // groups)
    most = -(-(512 if packed > 1 else 2048) // groups)
    return next(count for count in range(most, 0, -1) if math.gcd(count, 2 * 3 * 5 * 7) == 1)


def run_of(sequences: int) -> int:
    """Splits that a program of `kernels.hopper_attention_decode` takes one after the other; what
    has no more is merged there."""
    return FEW if sequences >= MERGE_SEVERAL_FROM else 1


def merged_heads(sequences: int, heads: int) -> int:
    """Query heads whose partial results a program merges."""
    if sequences < MERGE_SEVERAL_FROM:
        return 1
    return next(count for count in (4, 2, 1) if heads % count == 0)


def merge_warps(head_dim: int) -> int:
    """Of a program that merges, whatever the batch: more would add in another order."""
    return 2 if head_dim > 128 else 1


def decode_tile(head_dim: int, fp32: bool) -> dict[str, int]:
    """Positions per tile, warps and pipeline stages."""
    if head_dim > 128:
        return {"TILE": 16 if fp32 else 32, "num_warps": 4, "num_stages": 2}
    if fp32:
        return {"TILE": 32, "num_warps": 4, "num_stages": 2}
    return {"TILE": 64, "num_warps": 4, "num_stages": 3}


def prefill_tile(head_dim: int, fp32: bool) -> dict[str, int]:
    """Rows and positions per tile, warps and pipeline stages."""
    if fp32:
        tile = 32 if head_dim <= 64 else 16
        return {"BLOCK_M": 32, "TILE": tile, "num_warps": 4, "num_stages": 2}
    if head_dim > 128:
        return {"BLOCK_M": 64, "TILE": 32, "num_warps": 4, "num_stages": 2}
    if head_dim <= 64:
        return {"BLOCK_M": 64, "TILE": 64, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_M": 128, "TILE": 64, "num_warps": 8, "num_stages": 3}
