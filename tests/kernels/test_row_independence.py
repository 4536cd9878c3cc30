"""Bit for bit on the CPU: a row's result does not depend on the batch, nor on its chunks."""

import pytest
import torch

import kernels
from kernels import cpu_linear
from tests.kernels import checks, instructions
from tests.kernels.cases import Paged, paged, randn

OPS = kernels.ops("cpu", "cpu")
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
COUNTS = [*range(1, 35), 40, 63, 64, 65, 96, 100, 127, 128, 129, 200, 256, 300, 512, 513, 700]


@pytest.fixture(params=["oneDNN fp32", "oneDNN bf16", *instructions.INSTRUCTIONS])
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """Of products, by all that multiplies it."""
    if request.param.startswith("oneDNN"):
        instructions.use_none(monkeypatch)
        return torch.float32 if request.param.endswith("fp32") else torch.bfloat16
    return instructions.use(request.param, monkeypatch)


@pytest.mark.parametrize(
    ("n", "k"), [(960, 576), (576, 576), (3072, 576), (576, 1536), (96, 32), (12000, 64)]
)
def test_a_row_of_a_matrix_product_does_not_depend_on_the_row_count(
    n: int, k: int, dtype: torch.dtype
) -> None:
    # The products' second half cancels the first: the result is all rounding, and any other order
    # shows.
    x = randn(700, k // 2, dtype=dtype)
    x = torch.cat((x, -x), dim=1)
    weight = OPS.pack_weight(randn(n, k // 2, dtype=dtype, seed=2).repeat(1, 2))
    whole = OPS.linear(x, weight)
    for count in COUNTS:
        assert torch.equal(OPS.linear(x[:count], weight), whole[:count]), count
        assert torch.equal(OPS.linear(x[-count:], weight), whole[-count:]), count


def test_a_row_count_that_disagrees_is_padded_or_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = {4, 32, 64}
    monkeypatch.setattr(cpu_linear, "_agrees", lambda _shape, rows: rows in allowed)
    pieces = cpu_linear._pieces.__wrapped__
    monkeypatch.setattr(cpu_linear, "_pieces", pieces)
    shape = (1, 1, torch.float32, False, False, 1)
    assert pieces(shape, 1) == (4,)
    assert pieces(shape, 5) == (32,)
    assert pieces(shape, 32) == (32,)
    assert pieces(shape, 100) == (64, 32, 4)
    assert pieces(shape, 1000) == (64,) * 15 + (32, 32)
    x, weight = randn(100, 48, dtype=torch.float32), randn(7, 48, dtype=torch.float32, seed=2)
    packed = OPS.pack_weight(weight)
    torch.testing.assert_close(OPS.linear(x, packed), x @ weight.T)
    torch.testing.assert_close(OPS.linear(x[:1], packed), x[:1] @ weight.T)


@pytest.mark.parametrize("bias", [True])
def test_a_row_of_a_product_with_bias_does_not_depend_on_the_row_count(
    dtype: torch.dtype, bias: bool
) -> None:
    x, offset = randn(64, 96, dtype=dtype), randn(160, dtype=dtype, seed=3)
    weight = OPS.pack_weight(randn(160, 96, dtype=dtype, seed=2))
    whole = OPS.linear(x, weight, offset if bias else None)
    for count in range(1, 64):
        assert torch.equal(OPS.linear(x[:count], weight, offset), whole[:count]), count


def test_a_row_of_a_product_with_residual_does_not_depend_on_the_row_count(
    dtype: torch.dtype,
) -> None:
    x, weight = randn(700, 1536, dtype=dtype), randn(576, 1536, dtype=dtype, seed=2)
    packed = OPS.pack_weight(weight)
    residual = randn(700, 576, dtype=dtype, seed=3)
    whole = OPS.add_linear(x, packed, None, residual.clone())
    for count in COUNTS:
        for rows in (slice(0, count), slice(-count, None)):
            part = OPS.add_linear(x[rows], packed, None, residual[rows].clone())
            assert torch.equal(part, whole[rows]), count


@BOTH
def test_a_row_of_the_small_ops_does_not_depend_on_the_row_count(dtype: torch.dtype) -> None:
    x, weight = randn(130, 576, dtype=dtype), randn(576, dtype=dtype, seed=2)
    cos_sin = randn(200, 64, dtype=torch.float32)
    positions = torch.arange(130, dtype=torch.int32)
    pools = torch.zeros(2, 10, 16, 3, 64, dtype=dtype)
    slots = torch.arange(130)

    def run(count: int) -> list[torch.Tensor]:
        pools.zero_()
        q = OPS.rope_and_write_kv(
            x[:count], positions[:count], cos_sin, slots[:count], pools[0], pools[1], 3
        )
        kept = pools.view(2, 160, 3, 64)[:, :count].transpose(0, 1).clone()
        normed = [OPS.rms_norm(x[:count], weight, 1e-5)]
        return [q, kept, *normed, OPS.silu_and_mul(x[:count])]

    whole = run(130)
    for count in (1, 2, 3, 7, 16, 33, 64, 129):
        for part, all_rows in zip(run(count), whole, strict=True):
            assert torch.equal(part, all_rows[:count]), count


@BOTH
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_a_decode_does_not_depend_on_its_neighbours(head_dim: int, dtype: torch.dtype) -> None:
    checks.check_row_alone(OPS, dtype, "cpu", [1, 5, 64, 64, 65, 70, 300, 700, 1100], head_dim)


@BOTH
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_a_prompt_in_chunks_equals_it_whole(head_dim: int, dtype: torch.dtype) -> None:
    cuts = [1, 3, 20, 63, 64, 65, 128, 129, 193, 257, 300]
    checks.check_chunks(OPS, dtype, "cpu", 350, cuts, head_dim)


@BOTH
@pytest.mark.parametrize("heads", [1, 2, 8])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_a_decode_equals_the_same_position_in_a_prompt(
    head_dim: int, heads: int, dtype: torch.dtype
) -> None:
    length = 1100
    case = paged([length], 1, head_dim, 16, dtype)
    q = randn(length, heads, head_dim, dtype=dtype)
    whole = checks.prefill(OPS, q, case, [length])
    for position in (0, 1, 30, 63, 64, 127, 128, 200, 512, 513, 1023, 1024, 1099):
        lens = torch.tensor([position + 1], dtype=torch.int32)
        alone = Paged(case.k_pool, case.v_pool, case.block_tables, case.rows, lens, [])
        here = slice(position, position + 1)
        assert torch.equal(checks.decode(OPS, q[here], alone), whole[here]), position
