"""The kernels of `--batch-invariant` in Triton's interpreter; run by
test_interpreted_kernels.py."""

import pytest
import torch

import kernels
from kernels import (
    decode_plan,
    invariant_attention_decode,
    invariant_attention_prefill,
    invariant_product,
    reference,
)
from kernels.invariant_attention_decode import PARTS
from tests.kernels import checks, product_checks
from tests.kernels.cases import error, randn
from tests.kernels.interpreter import hasten

hasten()
OPS = kernels.ops("cpu", "triton", batch_invariant=True)
FP32 = torch.float32


@pytest.fixture
def wide_from_64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of 64 columns on are cut into stretches, of a multiple of 16."""
    monkeypatch.setattr(invariant_product, "WIDE", 64)
    monkeypatch.setattr(invariant_product, "STRETCH_UNIT", 16)


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> int:
    """Contexts are cut into splits of a tile, so that a few positions make many."""
    for module in (decode_plan, invariant_attention_decode, invariant_attention_prefill):
        monkeypatch.setattr(module, "SPLIT", 32)
    return 32


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 5, 33), (3, 40, 64), (35, 33, 40)])
def test_products_equal_the_oracle(rows: int, n: int, k: int, bias: bool) -> None:
    product_checks.check_linear(OPS, FP32, "cpu", rows, n, k, bias)
    product_checks.check_fused_linear(OPS, FP32, "cpu", rows, n, k, bias)


@pytest.mark.parametrize(("rows", "k"), [(1, 64), (3, 70), (35, 144)])
def test_products_in_stretches_equal_the_oracle(wide_from_64: None, rows: int, k: int) -> None:
    """Beside each other without the activation, after each other with it."""
    product_checks.check_fused_linear(OPS, FP32, "cpu", rows, 40, k, True)


def test_stretches_after_each_other_are_those_beside_each_other(
    wide_from_64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = randn(3, 144, dtype=FP32), OPS.pack_weight(randn(40, 144, dtype=FP32, seed=2))
    beside = OPS.linear(x, weight)
    monkeypatch.setattr(invariant_product, "MOST_SPREAD_ROWS", 2)
    assert torch.equal(OPS.linear(x, weight), beside)


def test_a_product_in_stretches_leaves_its_counters_as_they_were(wide_from_64: None) -> None:
    x, lines = randn(3, 144, dtype=FP32), randn(40, 144, dtype=FP32, seed=2)
    weight = OPS.pack_weight(lines)
    expected = reference.linear(x, reference.pack_weight(lines))
    for _ in range(3):
        assert error(OPS.linear(x, weight), expected) < 1e-5
        assert not weight.data.arrived.any()


def test_an_input_is_cut_by_its_width_alone() -> None:
    counts = {width: invariant_product.count_stretches(width) for width in (64, 8191, 8192, 14336)}
    assert counts == {64: (1, 64), 8191: (1, 8191), 8192: (4, 2048), 14336: (4, 3584)}
    assert invariant_product.count_stretches(8200) == (4, 2560)  # the last is 520
    assert invariant_product.count_stretches(9000) == (4, 2560)


def test_no_rows_launch_nothing() -> None:
    weight = OPS.pack_weight(randn(8, 16, dtype=FP32))
    assert OPS.linear(randn(0, 16, dtype=FP32), weight).shape == (0, 8)


@pytest.mark.parametrize("head_dim", [16, 80])
def test_attention_equals_the_oracle(head_dim: int) -> None:
    checks.check_attention(OPS, FP32, "cpu", [1, 2, 33, 67], [1, 2, 17, 3], (6, 2), head_dim, 16)


@pytest.mark.parametrize("heads", [(3, 1), (20, 1)])
def test_every_grouping_of_heads_equals_the_oracle(heads: tuple[int, int]) -> None:
    checks.check_attention(OPS, FP32, "cpu", [5, 34], [5, 3], heads, 16, 24)


def test_contexts_at_the_splits_borders_equal_the_oracle(split: int) -> None:
    contexts = [split - 1, split, split + 1, 2 * split + 3]
    checks.check_attention(OPS, FP32, "cpu", contexts, [1, 2, 17, 3], (2, 1), 16, 16)


def test_contexts_of_many_splits_equal_the_oracle(split: int) -> None:
    contexts = [PARTS * split, PARTS * split + 1]
    checks.check_attention(OPS, FP32, "cpu", contexts, [1, 3], (2, 1), 16, 64)


def test_a_context_of_nothing_gives_zeros() -> None:
    case = checks.paged([5, 1], 1, 16, 8)
    case.context_lens[1] = 0
    out = checks.decode(OPS, randn(2, 2, 16, dtype=FP32), case)
    assert out[1].eq(0).all()
    assert out[0].isfinite().all()


def test_attention_is_written_where_it_is_asked_to(split: int) -> None:
    checks.check_out(OPS, FP32, "cpu", [5, split + 1, 20])


def test_pads_of_a_mixed_step_change_nothing() -> None:
    checks.check_padded_mixed_step(OPS, FP32, "cpu", 16)
