"""Matrix products, with what a layer does before and after them, held to the oracle; as
`tests.kernels.checks`."""

import torch

from kernels import Ops, reference
from kernels import ops as op_table
from tests.kernels.cases import error, limit, randn


def check_linear(
    ops: Ops, dtype: torch.dtype, device: str, rows: int, n: int, k: int, bias: bool
) -> None:
    x, weight = randn(rows, k, dtype=dtype, device=device), randn(n, k, dtype=dtype, seed=2)
    offset = 10 * randn(n, dtype=dtype, seed=3) if bias else None
    expected = reference.linear(x.cpu(), reference.pack_weight(weight), offset)
    packed = ops.pack_weight(weight.to(device))
    actual = ops.linear(x, packed, None if offset is None else offset.to(device))
    assert error(actual, expected) < limit(dtype)


def check_fused_linear(
    ops: Ops, dtype: torch.dtype, device: str, rows: int, n: int, k: int, bias: bool
) -> None:
    """A product with what a layer does before and after it: norm, activation, residual; and the
    norm and product that read the residual next."""
    x, gain = 3 * randn(rows, k, dtype=dtype), randn(k, dtype=dtype, seed=4)
    # As a layer's weights are: the outputs keep the size of the inputs.
    weight, wide = (randn(m, k, dtype=dtype, seed=5) / k**0.5 for m in (n, 2 * n))
    offset, wide_offset = (randn(m, dtype=dtype, seed=6) if bias else None for m in (n, 2 * n))
    residual, next_gain = 5 * randn(rows, n, dtype=dtype, seed=7), randn(n, dtype=dtype, seed=8)
    following = randn(16, n, dtype=dtype, seed=9) / n**0.5
    pack = reference.pack_weight
    added = reference.add_linear(x, pack(weight), offset, residual)
    expected = (
        reference.norm_linear(x, gain, 1e-5, pack(weight), offset),
        reference.norm_gated_linear(x, gain, 1e-5, pack(wide), wide_offset),
        reference.norm_linear(added, next_gain, 1e-5, pack(following)),
        added,
    )

    def there(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(device, copy=True)

    narrow, wider, last = (ops.pack_weight(w.to(device)) for w in (weight, wide, following))
    added = ops.add_linear(there(x), narrow, there(offset), there(residual))
    actual = (
        ops.norm_linear(there(x), there(gain), 1e-5, narrow, there(offset)),
        ops.norm_gated_linear(there(x), there(gain), 1e-5, wider, there(wide_offset)),
        ops.norm_linear(added, there(next_gain), 1e-5, last),
        ops.summed(added),
    )
    for mine, wanted in zip(actual, expected, strict=True):
        assert error(mine, wanted) < 2 * limit(dtype)  # each op rounds, not only the last


def check_qkv(
    ops: Ops, dtype: torch.dtype, device: str, rows: int, k: int, head_dim: int, bias: bool
) -> None:
    """q, and what is written to the pools, of a normed input's product."""
    heads, kv_heads = 3, 1
    n = (heads + 2 * kv_heads) * head_dim
    x, gain = 3 * randn(rows, k, dtype=dtype), randn(k, dtype=dtype, seed=4)
    weight = randn(n, k, dtype=dtype, seed=5) / k**0.5
    offset = randn(n, dtype=dtype, seed=6) if bias else None
    angles = torch.rand(101, head_dim // 2, generator=torch.Generator().manual_seed(4)) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.arange(100, 100 - rows, -1, dtype=torch.int32)
    results = []
    for face, where in ((op_table("cpu", "reference"), "cpu"), (ops, device)):
        packed, offsets = face.pack_weight(weight.to(where)), offset
        if offset is not None:
            offsets = offset.to(where)
        qkv = face.norm_qkv(x.to(where), gain.to(where), 1e-5, packed, offsets)
        pools = torch.zeros(2, rows, 1, kv_heads, head_dim, dtype=dtype, device=where)
        tokens = (positions, cos_sin, torch.arange(rows))
        q = face.rope_and_write_kv(qkv, *(t.to(where) for t in tokens), *pools, heads)
        results.append((q, *pools))
    for wanted, mine in zip(*results, strict=True):
        assert error(mine, wanted) < 2 * limit(dtype)
