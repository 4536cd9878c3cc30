"""The models whose shapes are timed, and paged pools of their layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Calls = list[Callable[[], Any]]


@dataclass(frozen=True)
class Shape:
    """The widths of a Llama model."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int

    @property
    def products(self) -> dict[str, tuple[int, int, int]]:
        """name -> (out_features, in_features, times per step)."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        return {
            "qkv": (qkv, self.hidden, self.layers),
            "o": (self.hidden, self.heads * self.head_dim, self.layers),
            "gate_up": (2 * self.intermediate, self.hidden, self.layers),
            "down": (self.hidden, self.intermediate, self.layers),
            "head": (self.vocab, self.hidden, 1),
        }


SMOLLM2 = Shape("SmolLM2-135M", 576, 30, 9, 3, 64, 1536, 49152)
LLAMA_1B = Shape("Llama-3.2-1B", 2048, 16, 32, 8, 64, 8192, 128256)
LLAMA_8B = Shape("Llama-3.1-8B", 4096, 32, 32, 8, 128, 14336, 128256)


def paged(shape: Shape, rows: int, context: int, dtype: torch.dtype, device: str) -> list[Any]:
    """[k_pool, v_pool, block_tables, rows, context_lens] with shuffled blocks of 16."""
    per_row = -(-context // 16)
    blocks = rows * per_row + 1
    pools = torch.randn(2, blocks, 16, shape.kv_heads, shape.head_dim, device=device).to(dtype)
    tables = (torch.randperm(blocks - 1, device=device) + 1).int().view(rows, per_row)
    order = torch.randperm(rows, device=device).int()
    lens = torch.full((rows,), context, dtype=torch.int32, device=device)
    return [pools[0], pools[1], tables, order, lens]
