"""The kernels of `--batch-invariant` on a GPU, bit for bit."""

from collections.abc import Callable

import pytest
import torch

import kernels
from kernels.invariant_product import invariant_product
from tests.kernels import checks, product_checks
from tests.kernels.cases import Paged, paged, randn

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16
EVERY = pytest.mark.parametrize(
    "dtype", [BF16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"]
)
BOTH = pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=["bf16", "fp32"])
# Around every border between tiles, and of every graph of decodes.
COUNTS = [1, 2, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 160, 192, 255, 256]
COUNTS += [257, 300, 511, 512, 513, 1000]
MOST = 1100
CONTEXTS = [1, 2, 15, 16, 17, 255, 256, 257, 900, 1500, 4097, 9000]
QUERIES = [1, 2, 15, 1, 17, 255, 100, 257, 33, 1, 17, 2]


@pytest.fixture(scope="module")
def ops() -> kernels.Ops:
    return kernels.ops("cuda", batch_invariant=True)


@EVERY
@pytest.mark.parametrize("rows", [1, 33, 70, 300])
def test_products_equal_the_oracle(ops: kernels.Ops, rows: int, dtype: torch.dtype) -> None:
    for n, k in ((1001, 100), (320, 2048), (64, 8192), (40, 9000)):
        product_checks.check_linear(ops, dtype, "cuda", rows, n, k, True)
        product_checks.check_fused_linear(ops, dtype, "cuda", rows, n, k, False)


def cancelling(k: int, dtype: torch.dtype, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [MOST, k] and a weight [n, k] whose products cancel, each with one that is far from it: all
    that is left is rounding, and any other order of the sums shows."""
    x, lines = (randn(m, k // 2, dtype=dtype, device="cuda", seed=m) for m in (MOST, n))
    order = torch.randperm(k // 2, generator=torch.Generator().manual_seed(5)).cuda()
    return torch.cat((x, -x[:, order]), dim=1), torch.cat((lines, lines[:, order]), dim=1)


def differing_counts(
    product: Callable[..., torch.Tensor], x: torch.Tensor, residual: torch.Tensor
) -> list[int]:
    """The row counts that give the first or last rows other bits than all rows together."""
    whole = product(x, residual)
    return [
        count
        for count in COUNTS
        for part in (slice(0, count), slice(-count, None))
        if not torch.equal(product(x[part], residual[part]), whole[part])
    ]


@EVERY
@pytest.mark.parametrize(
    ("n", "k"), [(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (960, 576), (264, 14336)]
)
def test_a_row_of_a_product_does_not_depend_on_the_row_count(
    ops: kernels.Ops, n: int, k: int, dtype: torch.dtype
) -> None:
    x, lines = cancelling(k, dtype, n)
    weight, residual = ops.pack_weight(lines), torch.zeros(MOST, n, dtype=dtype, device="cuda")
    assert 0 < ops.linear(x, weight).float().abs().median() < 1e-2
    gain = torch.ones(k, dtype=dtype, device="cuda")
    for product in (
        lambda x, _: ops.linear(x, weight),
        lambda x, residual: ops.add_linear(x, weight, None, residual.clone()),
        lambda x, _: ops.norm_gated_linear(x, gain, 1e-5, weight),
    ):
        assert differing_counts(product, x, residual) == []


def test_the_usual_products_do_depend_on_it() -> None:
    usual = kernels.ops("cuda")
    x, lines = cancelling(2048, BF16, 2048)
    weight = usual.pack_weight(lines)
    assert 1 in differing_counts(lambda x, _: usual.linear(x, weight), x, x)


def test_stretches_are_counted_anew_by_every_launch(ops: kernels.Ops) -> None:
    x, lines = cancelling(8192, BF16, 2048)
    weight = ops.pack_weight(lines)
    results = [invariant_product(x[:rows], weight) for rows in (64, 1, 20, 64) * 50]
    assert not weight.data.arrived.any()
    assert all(torch.equal(result, results[0][: len(result)]) for result in results)


@BOTH
@pytest.mark.parametrize("head_dim", [64, 128])
def test_attention_equals_the_oracle(ops: kernels.Ops, head_dim: int, dtype: torch.dtype) -> None:
    checks.check_attention(ops, dtype, "cuda", CONTEXTS, QUERIES, (32, 8), head_dim, 16)


@pytest.mark.parametrize("head_dim", [16, 32, 80, 96, 256])
def test_attention_equals_the_oracle_at_every_head_dim(ops: kernels.Ops, head_dim: int) -> None:
    checks.check_attention(ops, BF16, "cuda", [1, 33, 300], [1, 17, 130], (9, 3), head_dim, 16)
    checks.check_attention(ops, BF16, "cuda", [1, 33, 300], [1, 17, 130], (20, 1), head_dim, 24)


def test_attention_equals_the_oracle_over_a_context_of_32768(ops: kernels.Ops) -> None:
    checks.check_context_of_32768(ops, BF16, "cuda")


def test_attention_is_written_where_it_is_asked_to(ops: kernels.Ops) -> None:
    checks.check_out(ops, BF16, "cuda", [5, 257, 40])
    checks.check_padded_mixed_step(ops, BF16, "cuda", 64)


@EVERY
@pytest.mark.parametrize(("head_dim", "heads"), [(64, (32, 8)), (128, (32, 8)), (80, (20, 1))])
def test_a_position_has_the_same_attention_decoded_and_in_a_prompt(
    ops: kernels.Ops, head_dim: int, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    length = 1300
    case = paged([length], heads[1], head_dim, 16, dtype, "cuda")
    q = randn(length, heads[0], head_dim, dtype=dtype, device="cuda")
    whole = checks.prefill(ops, q, case, [length])
    start = 0
    for end in (1, 8, 72, 73, 256, 700, length):
        lens = torch.tensor([end], dtype=torch.int32, device="cuda")
        part = Paged(case.k_pool, case.v_pool, case.block_tables, case.rows, lens, [])
        chunk = checks.prefill(ops, q[start:end], part, [end - start])
        assert torch.equal(chunk, whole[start:end]), (start, end)
        start = end
    contexts = torch.arange(1, length + 1, dtype=torch.int32, device="cuda")
    for positions in (slice(None), slice(0, 1), slice(600, 601), slice(-30, None)):
        lens = contexts[positions]
        alike = Paged(
            case.k_pool, case.v_pool, case.block_tables, case.rows.expand(len(lens)).contiguous(),
            lens, [],
        )  # fmt: skip
        assert torch.equal(checks.decode(ops, q[positions], alike), whole[positions])
