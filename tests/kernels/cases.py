"""Random ragged inputs for the ops, and the measure by which a face equals the oracle."""

from dataclasses import dataclass

import torch

# A table entry past a row's last block: following it faults, or reads far outside the pool.
NOWHERE = 2_000_000_000
GUARD = 12345.0


@dataclass
class Paged:
    """One layer's pool, whose slots outside the rows' contexts hold `poison`, and its tables."""

    k_pool: torch.Tensor
    v_pool: torch.Tensor
    block_tables: torch.Tensor
    rows: torch.Tensor
    context_lens: torch.Tensor
    slots: list[torch.Tensor]  # each sequence's own, in order of position

    @property
    def max_context_len(self) -> int:
        return int(self.context_lens.max())


def paged(
    context_lens: list[int],
    kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    poison: float = float("nan"),
    seed: int = 0,
) -> Paged:
    """Rows and blocks are dealt in random order; block 0 is scratch, and one block stays unused."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // block_size) for length in context_lens]
    blocks = sum(counts) + 2
    free = torch.randperm(blocks - 1, generator=generator) + 1
    max_rows = len(context_lens) + 2
    tables = torch.full((max_rows, max(counts) + 1), NOWHERE, dtype=torch.int32)
    rows = torch.randperm(max_rows, generator=generator)[: len(context_lens)].int()
    shape = (blocks, block_size, kv_heads, head_dim)
    k_pool, v_pool = (torch.full(shape, poison, dtype=dtype) for _ in range(2))
    slots, taken = [], 0
    for row, count, length in zip(rows.tolist(), counts, context_lens, strict=True):
        mine = free[taken : taken + count]
        taken += count
        tables[row, :count] = mine.int()
        own = (mine[:, None] * block_size + torch.arange(block_size)).view(-1)[:length]
        slots.append(own)
        for pool in (k_pool, v_pool):
            data = torch.randn(length, kv_heads, head_dim, generator=generator)
            pool.view(-1, kv_heads, head_dim)[own] = data.to(dtype)
    return Paged(
        k_pool.to(device),
        v_pool.to(device),
        tables.to(device),
        rows.to(device),
        torch.tensor(context_lens, dtype=torch.int32, device=device),
        slots,
    )


def starts_of(query_lens: list[int], device: str = "cpu") -> torch.Tensor:
    return torch.tensor([0, *query_lens]).cumsum(0).int().to(device)


def randn(*shape: int, dtype: torch.dtype, device: str = "cpu", seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference over the norm of what is expected; NaN compares as infinite."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    actual, expected = actual.cpu().double(), expected.cpu().double()
    value = float((actual - expected).norm() / expected.norm().clamp(min=1e-30))
    return value if value == value else float("inf")


def limit(dtype: torch.dtype) -> float:
    """The largest `error` that rounding explains."""
    return 1e-5 if dtype == torch.float32 else 8e-3


def guarded(shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu"):
    """(a view of `shape`, the whole buffer): GUARD before, in and after the view."""
    size = torch.Size(shape).numel()
    buffer = torch.full((size + 2048,), GUARD, dtype=dtype, device=device)
    return buffer[1024 : 1024 + size].view(shape), buffer
