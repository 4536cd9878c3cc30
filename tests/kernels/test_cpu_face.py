import pytest
import torch

import kernels
from tests.kernels import checks, product_checks
from tests.kernels.cases import paged, randn

OPS = kernels.ops("cpu", "cpu")
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
ALL = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"]
)
BORDERS = [1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 600]


@ALL
@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_norms_and_activation_equal_the_oracle(dtype: torch.dtype, tokens: int) -> None:
    checks.check_norms(OPS, dtype, "cpu", tokens, 576)
    checks.check_silu(OPS, dtype, "cpu", tokens, 200)


def test_a_norm_of_large_and_of_tiny_values_equals_the_oracle() -> None:
    weight = torch.ones(64)
    for size in (1e-8, 1e-3, 1e6):
        x = size * randn(3, 64, dtype=torch.float32)
        expected = kernels.ops("cpu", "reference").rms_norm(x, weight, 1e-5)
        torch.testing.assert_close(OPS.rms_norm(x, weight, 1e-5), expected, rtol=1e-5, atol=0)


@BOTH
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("rows", [1, 3, 33, 600])
def test_linear_equals_the_oracle(dtype: torch.dtype, rows: int, bias: bool) -> None:
    product_checks.check_linear(OPS, dtype, "cpu", rows, 96, 160, bias)


@BOTH
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("rows", [1, 3, 33])
def test_fused_products_equal_the_oracle(dtype: torch.dtype, rows: int, bias: bool) -> None:
    product_checks.check_fused_linear(OPS, dtype, "cpu", rows, 96, 160, bias)


@ALL
@pytest.mark.parametrize("slots", [[9], [31, 0, 8, 9, 15, 77]], ids=["one token", "scattered"])
def test_rope_writes_its_slots_and_nothing_else(dtype: torch.dtype, slots: list[int]) -> None:
    checks.check_rope(OPS, dtype, "cpu", 9, 3, 64, 16, slots)
    checks.check_rope(OPS, dtype, "cpu", 4, 2, 80, 24, slots)


@BOTH
@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 32, 64])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 96, 128, 256])
def test_attention_equals_the_oracle_in_every_shape(
    head_dim: int, block_size: int, dtype: torch.dtype
) -> None:
    contexts, queries = [1, 2, block_size, block_size + 1, 67], [1, 2, 1, block_size, 17]
    checks.check_attention(OPS, dtype, "cpu", contexts, queries, (6, 2), head_dim, block_size)


@ALL
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)], ids=["grouped", "own", "shared"])
def test_attention_equals_the_oracle_at_every_border(
    dtype: torch.dtype, heads: tuple[int, int]
) -> None:
    queries = [1, 2, 3, 16, 1, 17, 64, 64, 100, 130, 257, 33]
    checks.check_attention(OPS, dtype, "cpu", BORDERS, queries, heads, 32, 16)


def test_attention_equals_the_oracle_over_a_long_context() -> None:
    checks.check_attention(OPS, torch.float32, "cpu", [4097, 3], [5, 2], (2, 1), 16, 16)


@BOTH
def test_attention_equals_the_oracle_over_a_context_of_32768(dtype: torch.dtype) -> None:
    checks.check_context_of_32768(OPS, dtype, "cpu")


@BOTH
@pytest.mark.parametrize("contexts", [[5, 40], [5, 70]], ids=["one length", "two lengths"])
def test_attention_is_written_where_it_is_asked_to(dtype: torch.dtype, contexts: list[int]) -> None:
    checks.check_out(OPS, dtype, "cpu", contexts)


@BOTH
def test_the_read_through_tables_equals_that_of_the_slot_rectangle(dtype: torch.dtype) -> None:
    checks.check_slot_rectangle(OPS, dtype, "cpu", BORDERS, 64)


@BOTH
def test_attention_over_one_position_is_its_value(dtype: torch.dtype) -> None:
    checks.check_context_of_one(OPS, dtype, "cpu", 64)


def test_a_context_of_nothing_gives_zeros() -> None:
    case = paged([5, 1], 2, 16, 8)
    case.context_lens[1] = 0
    out = checks.decode(OPS, randn(2, 4, 16, dtype=torch.float32), case)
    assert out[1].eq(0).all()
    assert out[0].isfinite().all()


@BOTH
def test_a_plan_made_once_serves_every_layer(dtype: torch.dtype) -> None:
    case = paged([1, 70, 130], 2, 16, 8, dtype)
    tables = (case.k_pool, case.block_tables, case.rows)
    plan = OPS.plan_decode(*tables, case.context_lens)
    q = randn(3, 4, 16, dtype=dtype)
    assert torch.equal(checks.decode(OPS, q, case, plan=plan), checks.decode(OPS, q, case))
    query_lens = [1, 3, 100]
    plan = OPS.plan_prefill(*tables, checks.starts_of(query_lens), case.context_lens)
    q = randn(104, 4, 16, dtype=dtype)
    planned = checks.prefill(OPS, q, case, query_lens, plan=plan)
    assert torch.equal(planned, checks.prefill(OPS, q, case, query_lens))


@BOTH
def test_gathered_lines_equal_the_oracles(dtype: torch.dtype) -> None:
    checks.check_gather(OPS, dtype, "cpu", 48)


def test_scattered_values_equal_the_oracles() -> None:
    checks.check_scatter(OPS, "cpu", 300)


@pytest.mark.parametrize("query_lens", [[1], [1, 1, 1], [1, 7, 300, 2], [33, 1]])
def test_the_tokens_of_a_step_equal_the_oracles(query_lens: list[int]) -> None:
    checks.check_step_tokens(OPS, "cpu", query_lens)
    checks.check_step_tokens(OPS, "cpu", query_lens, pads=40)


def test_nothing_of_no_tokens() -> None:
    weight = OPS.pack_weight(torch.ones(4, 3))
    assert OPS.linear(torch.ones(0, 3), weight).shape == (0, 4)
    assert OPS.rms_norm(torch.ones(0, 8), torch.ones(8), 1e-5).shape == (0, 8)
    assert OPS.silu_and_mul(torch.ones(0, 8)).shape == (0, 4)
