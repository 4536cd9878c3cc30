"""Products in parts of their inputs: when, and on a GPU, whether they are right."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

import kernels
from kernels import reference
from kernels.linear import Unsummed, linear
from kernels.split_product import count_parts, parts_of, split_product
from tests.kernels.cases import error, limit, randn

H200 = 132  # multiprocessors
BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("n", "k", "parts"),
    [
        (2048, 2048, {65: 2, 128: 2, 129: 1, 512: 1}),
        (2048, 8192, {65: 4, 256: 4, 257: 2, 512: 2, 513: 1, 4096: 1}),
        (4096, 4096, {65: 2, 256: 2, 257: 1}),
        (4096, 14336, {65: 2, 256: 2, 257: 1}),
        (576, 1536, {65: 2, 512: 1}),
        (64, 1000, {65: 1}),
        (64, 20000, {1: 1, 2: 2}),  # more inputs than the product of one row takes
    ],
)
def test_few_outputs_of_many_inputs_are_computed_in_parts(
    n: int, k: int, parts: dict[int, int]
) -> None:
    assert {rows: count_parts(rows, n, k, H200) for rows in parts} == parts


def test_parts_whose_lines_would_not_be_aligned_are_not_made() -> None:
    assert count_parts(65, 64, 4096 + 16, H200) == 2
    assert count_parts(65, 64, 4096 + 8, H200) == 1


@pytest.mark.gpu
def test_parts_add_up_to_a_product_in_float64() -> None:
    """Of every number of rows around the borders of tiles, at the shapes of 1B and of 8B."""
    for n, k in ((2048, 2048), (2048, 8192), (4096, 4096), (4096, 14336)):
        weight, bias = (randn(*shape, dtype=BF16, device="cuda") for shape in ((n, k), (n,)))
        packed = kernels.ops("cuda").pack_weight(weight)
        for rows in (65, 96, 127, 128, 129, 255, 256, 257, 384, 512):
            x = randn(rows, k, dtype=BF16, device="cuda", seed=rows)
            parts = max(2, parts_of(x, packed))
            torch.full((parts, rows, n), float("nan"), device="cuda")  # what its memory held
            product = split_product(x, packed, bias, parts)
            assert product.parts.shape == (parts, rows, n)
            expected = x.double() @ weight.double().T
            assert error(product.parts.double().sum(0), expected) < 1e-5, (rows, n, k)


@pytest.mark.gpu
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_a_residual_takes_the_parts_in_the_norm_that_reads_it(bias: bool) -> None:
    ops, n, k, eps = kernels.ops("cuda"), 2048, 8192, 1e-5
    weight = randn(n, k, dtype=BF16, device="cuda") / k**0.5
    packed, last = ops.pack_weight(weight), ops.pack_weight(torch.eye(n, dtype=BF16, device="cuda"))
    gain, offset = (randn(n, dtype=BF16, device="cuda", seed=seed) for seed in (3, 4))
    for rows in (65, 256, 300):
        x, residual = (randn(rows, width, dtype=BF16, device="cuda", seed=rows) for width in (k, n))
        product = x.double() @ weight.double().T + (offset.double() if bias else 0)
        total = residual.double() + product
        added = ops.add_linear(x, packed, offset if bias else None, residual)
        assert isinstance(added, Unsummed)
        normed = ops.norm_linear(added, gain, eps, last)
        assert error(ops.summed(added).double(), total) < limit(BF16)
        expected = reference.rms_norm(total.float(), gain.float(), eps)
        assert error(normed.float(), expected) < 2 * limit(BF16)


@pytest.mark.gpu
def test_a_product_in_parts_can_be_captured_and_replayed() -> None:
    x, weight = (randn(rows, 4096, dtype=BF16, device="cuda") for rows in (200, 2048))
    packed = kernels.ops("cuda").pack_weight(weight)
    expected = split_product(x, packed, None, 2).parts.sum(0)
    still, graph = torch.zeros_like(x), torch.cuda.CUDAGraph()
    split_product(still, packed, None, 2)
    with torch.cuda.graph(graph):
        parts = split_product(still, packed, None, 2).parts
    still.copy_(x)
    parts.fill_(float("nan"))
    graph.replay()
    assert torch.equal(parts.sum(0), expected)
    assert error(expected.to(BF16), linear(x, packed)) < limit(BF16)
