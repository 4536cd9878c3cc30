"""The other Triton kernels in Triton's interpreter; run by test_interpreted_kernels.py."""

from typing import Any

import pytest
import torch

import kernels
from kernels import linear, penalize, reference, sample, skinny_product
from kernels.gemv import gemv
from kernels.sample import STRETCH
from kernels.split_product import split_product
from tests.kernels import checks, penalty_checks, product_checks
from tests.kernels.cases import GUARD, error, randn
from tests.kernels.interpreter import hasten

hasten()
OPS = kernels.ops("cpu", "triton")
FP32 = torch.float32


@pytest.mark.parametrize("width", [16, 48, 576])
def test_norms_equal_the_oracle(width: int) -> None:
    checks.check_norms(OPS, FP32, "cpu", 3, width)


@pytest.mark.parametrize("width", [8, 200, 1030])
def test_the_activation_equals_the_oracle(width: int) -> None:
    checks.check_silu(OPS, FP32, "cpu", 3, width)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(("n", "k"), [(5, 33), (3, 1024), (4, 1536)])
def test_the_skinny_product_equals_the_oracle(n: int, k: int, bias: bool) -> None:
    x, weight = randn(1, k, dtype=FP32), randn(n, k, dtype=FP32, seed=2)
    offset = 10 * randn(n, dtype=FP32, seed=3) if bias else None
    expected = reference.linear(x, reference.pack_weight(weight), offset)
    assert error(gemv(x, linear.pack_weight(weight), offset), expected) < 1e-5


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(("n", "k"), [(5, 33), (4, 1024)])
def test_fused_skinny_products_equal_the_oracle(
    monkeypatch: pytest.MonkeyPatch, n: int, k: int, bias: bool
) -> None:
    monkeypatch.setattr(linear, "takes", lambda x: x.shape[0] == 1)
    product_checks.check_fused_linear(OPS, FP32, "cpu", 1, n, k, bias)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_fused_products_of_more_rows_equal_the_oracle(bias: bool) -> None:
    product_checks.check_fused_linear(OPS, FP32, "cpu", 3, 5, 33, bias)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("programs", [1, 4])
def test_products_of_a_few_rows_equal_the_oracle(
    monkeypatch: pytest.MonkeyPatch, programs: int, bias: bool
) -> None:
    """Whole, and in parts that are added up by what reads them, the last of them shorter."""
    taken: list[int] = []
    monkeypatch.setattr(linear, "few", lambda x: x.shape[1] == K and not taken.append(x.shape[0]))
    monkeypatch.setattr(skinny_product, "multiprocessors", lambda _: programs)
    K = 5 * skinny_product.BLOCK_K
    for rows, n in ((3, 20), (17, 70)):
        product_checks.check_fused_linear(OPS, FP32, "cpu", rows, n, K, bias)
    product_checks.check_qkv(OPS, FP32, "cpu", 3, K, 80, bias)
    assert taken == [3] * 3 + [17] * 3 + [3]


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("parts", [2, 4])
def test_products_in_parts_equal_the_oracle(
    monkeypatch: pytest.MonkeyPatch, parts: int, bias: bool
) -> None:
    taken: list[int] = []

    def split(*product: Any) -> Any:
        taken.append(product[-1])
        return split_product(*product)

    monkeypatch.setattr(linear, "parts_of", lambda x, _: parts)
    monkeypatch.setattr(linear, "split_product", split)
    product_checks.check_fused_linear(OPS, FP32, "cpu", 5, 20, 96, bias)
    assert taken == [parts]


@pytest.mark.parametrize("head_dim", [16, 80, 128])
@pytest.mark.parametrize("block_size", [1, 8, 24])
def test_rope_writes_its_slots_and_nothing_else(head_dim: int, block_size: int) -> None:
    checks.check_rope(OPS, FP32, "cpu", 4, 2, head_dim, block_size, [31, 0, 8, 9, 15])


def test_padded_tokens_write_the_scratch_slot_alone() -> None:
    pools = torch.full((2, 4, 8, 1, 16), GUARD)
    qkv = randn(3, 3 * 16, dtype=FP32)
    slots = torch.tensor([17, 0, 0])
    positions = torch.zeros(3, dtype=torch.int32)
    cos_sin = torch.cat((torch.ones(1, 8), torch.zeros(1, 8)), dim=-1)
    OPS.rope_and_write_kv(qkv, positions, cos_sin, slots, pools[0], pools[1], 1)
    flat = pools.view(2, 32, 16)
    assert torch.equal(flat[:, 17], qkv.view(3, 3, 16)[0, 1:])
    untouched = [slot for slot in range(32) if slot not in (0, 17)]
    assert bool((flat[:, untouched] == GUARD).all())


def test_slots_whose_offset_passes_31_bits_are_written() -> None:
    block_size, kv_heads, head_dim = 16, 3, 64
    block = 2**31 // (block_size * kv_heads * head_dim) + 7
    # Lazily allocated: only the pages written are ever touched. One by one, as a system refuses at
    # once what is more than all its memory.
    pools = [torch.empty(block + 1, block_size, kv_heads, head_dim) for _ in range(2)]
    qkv = randn(1, 7 * head_dim, dtype=FP32)
    cos_sin = torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), dim=-1)
    slot = torch.tensor([block * block_size + 3])
    zero = torch.zeros(1, dtype=torch.int32)
    OPS.rope_and_write_kv(qkv, zero, cos_sin, slot, pools[0], pools[1], 1)
    assert torch.equal(pools[0][block, 3], qkv.view(7, head_dim)[1:4])
    assert torch.equal(pools[1][block, 3], qkv.view(7, head_dim)[4:])


@pytest.mark.parametrize("width", [5, 576, 2050])
def test_gathered_lines_equal_the_oracles(width: int) -> None:
    checks.check_gather(OPS, FP32, "cpu", width)


@pytest.mark.parametrize("count", [1, 300])
def test_scattered_values_equal_the_oracles(count: int) -> None:
    checks.check_scatter(OPS, "cpu", count)


@pytest.mark.parametrize("query_lens", [[1], [1, 1, 1], [1, 7, 300, 2], [33, 1]])
def test_the_tokens_of_a_step_equal_the_oracles(query_lens: list[int]) -> None:
    checks.check_step_tokens(OPS, "cpu", query_lens)
    checks.check_step_tokens(OPS, "cpu", query_lens, pads=40)


def test_sampling_writes_what_it_samples_and_nothing_else() -> None:
    checks.check_sample_writes_its_places_alone(OPS, "cpu")


@pytest.fixture(params=[1 << 30, 0], ids=["few lines", "many lines"])
def lines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As which a line is cut."""
    monkeypatch.setattr(sample, "FEW_LINES", request.param)


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize(
    ("lines", "vocab"),
    [(1 << 30, 7), (1 << 30, STRETCH), (1 << 30, 2 * STRETCH + 5), (0, 2 * STRETCH + 5)],
    indirect=["lines"],
)
def test_sampled_ids_equal_the_oracles(vocab: int) -> None:
    checks.check_sample(OPS, FP32, "cpu", 8, vocab)


@pytest.mark.usefixtures("lines")
def test_ties_take_the_lowest_id_and_non_finite_rows_are_flagged() -> None:
    checks.check_ties_and_flags(OPS, "cpu")


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("border", [STRETCH // 4, STRETCH, 2 * STRETCH])
def test_a_tie_across_stretches_takes_the_lowest_id(border: int) -> None:
    logits = torch.zeros(1, 3 * STRETCH)
    logits[0, border - 1] = logits[0, border + 1] = 3.0
    zero = torch.zeros(1)
    assert checks.draw(OPS, logits, zero, zero.long(), zero.int()).tolist() == [border - 1]


@pytest.mark.usefixtures("lines")
def test_a_nan_in_a_losing_stretch_flags_the_row() -> None:
    logits = torch.zeros(2, 3 * STRETCH)
    logits[0, 5] = 9.0
    logits[0, -1] = float("nan")
    cold = torch.tensor([0.0, 0.0])
    assert checks.draw(OPS, logits, cold, cold.long(), cold.int()).tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("vocab", "longest"), [(30, 50), (penalize.STRETCH + 7, penalize.TILE + 5)]
)
def test_penalized_scores_equal_the_oracles(vocab: int, longest: int) -> None:
    penalty_checks.check_penalties(OPS, FP32, "cpu", vocab, longest)


def test_a_penalty_changes_the_draw_of_its_row_alone() -> None:
    penalty_checks.check_penalties_draw(OPS, "cpu")


@pytest.mark.parametrize("vocab", [STRETCH, STRETCH + 5])
def test_log_probabilities_equal_the_oracles(vocab: int) -> None:
    penalty_checks.check_logprobs(OPS, FP32, "cpu", vocab, (0, 3, 20))


def test_more_log_probabilities_than_there_is_room_for_are_refused() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ValueError, match="count is 21, must be 0 <= count <= 20"):
        OPS.top_logprobs(torch.ones(0, 50), nothing, nothing.int(), 21)


def test_no_tokens_launch_nothing() -> None:
    assert OPS.rms_norm(torch.ones(0, 8), torch.ones(8), 1e-5).shape == (0, 8)
    assert OPS.silu_and_mul(torch.ones(0, 8)).shape == (0, 4)
    nothing, tokens = torch.zeros(0, dtype=torch.int32), torch.zeros((1, 1), dtype=torch.int32)
    answers = OPS.sample(
        torch.ones(0, 8), nothing, nothing, torch.ones(0), nothing.long(), tokens
    )  # fmt: skip
    assert answers.numel() == 0
    assert OPS.step_tokens(tokens, nothing, nothing, nothing, 0, 1)[0].numel() == 0
    OPS.scatter(tokens.view(-1), nothing.long(), nothing)
