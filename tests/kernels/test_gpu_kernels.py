"""The Triton face on a GPU, at the shapes of Llama-3.2-1B (head_dim 64) and Llama-3.1-8B (128)."""

import pytest
import torch

import kernels
from kernels import hopper_attention_decode, paged_attention_decode
from kernels.attention_sizes import HOPPER_PACK_FROM, MERGE_SEVERAL_FROM
from tests.kernels import checks, penalty_checks, product_checks
from tests.kernels.cases import Paged, randn

pytestmark = pytest.mark.gpu
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
BF16 = torch.bfloat16
# Decodes enough for programs that take several K/V heads.
CONTEXTS = [1, 2, 15, 16, 17, 255, 256, 257, 900, 1500, 4097, 9000, 31, 64, 1024, 1025]
QUERIES = [1, 2, 15, 1, 17, 255, 100, 257, 33, 1, 17, 2, 1, 1, 1, 1]


@pytest.fixture(scope="module")
def ops() -> kernels.Ops:
    return kernels.ops("cuda")


@BOTH
@pytest.mark.parametrize("tokens", [1, 67])
def test_norms_and_activation_equal_the_oracle(
    ops: kernels.Ops, tokens: int, dtype: torch.dtype
) -> None:
    for width in (576, 2048, 4096):
        checks.check_norms(ops, dtype, "cuda", tokens, width)
    for width in (1536, 8192, 14336):
        checks.check_silu(ops, dtype, "cuda", tokens, width)


@BOTH
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("rows", [1, 2, 33])
def test_linear_equals_the_oracle(
    ops: kernels.Ops, rows: int, bias: bool, dtype: torch.dtype
) -> None:
    for n, k in ((3072, 2048), (2048, 8192), (576, 1536), (1001, 100)):
        product_checks.check_linear(ops, dtype, "cuda", rows, n, k, bias)


@BOTH
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 33, 64, 65, 150])
def test_fused_products_equal_the_oracle(
    ops: kernels.Ops, rows: int, bias: bool, dtype: torch.dtype
) -> None:
    for n, k in ((3072, 2048), (576, 1536), (1001, 104), (640, 8192), (300, 14336), (64, 20000)):
        product_checks.check_fused_linear(ops, dtype, "cuda", rows, n, k, bias)


@BOTH
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("rows", [1, 2, 32, 50])
def test_rope_of_a_product_equals_the_oracle(
    ops: kernels.Ops, rows: int, bias: bool, dtype: torch.dtype
) -> None:
    for head_dim, k in ((64, 576), (64, 2048), (80, 2048), (128, 4096), (96, 100)):
        product_checks.check_qkv(ops, dtype, "cuda", rows, k, head_dim, bias)


@BOTH
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_rope_writes_its_slots_and_nothing_else(
    ops: kernels.Ops, head_dim: int, dtype: torch.dtype
) -> None:
    checks.check_rope(ops, dtype, "cuda", 32, 8, head_dim, 16, [31, 0, 8, 9, 15, 777, 778])


@BOTH
@pytest.mark.parametrize("head_dim", [64, 128])
def test_attention_equals_the_oracle(ops: kernels.Ops, head_dim: int, dtype: torch.dtype) -> None:
    checks.check_attention(ops, dtype, "cuda", CONTEXTS, QUERIES, (32, 8), head_dim, 16)


@pytest.mark.parametrize("head_dim", [16, 32, 80, 96, 256])
def test_attention_equals_the_oracle_at_every_head_dim(ops: kernels.Ops, head_dim: int) -> None:
    checks.check_attention(ops, BF16, "cuda", [1, 33, 300], [1, 17, 130], (9, 3), head_dim, 16)
    checks.check_attention(ops, BF16, "cuda", [1, 33, 300] * 6, [1] * 18, (16, 8), head_dim, 16)


@pytest.mark.parametrize("block_size", [1, 8, 24, 32, 64])
def test_attention_equals_the_oracle_at_every_block_size(ops: kernels.Ops, block_size: int) -> None:
    contexts = [block_size, block_size + 1, 300]
    checks.check_attention(ops, BF16, "cuda", contexts, [1, 2, 130], (8, 2), 64, block_size)


def test_attention_equals_the_oracle_over_a_context_of_32768(ops: kernels.Ops) -> None:
    checks.check_context_of_32768(ops, BF16, "cuda")


@BOTH
def test_attention_is_written_where_it_is_asked_to(ops: kernels.Ops, dtype: torch.dtype) -> None:
    checks.check_out(ops, dtype, "cuda", [5, 257, 40])


@BOTH
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_read_through_tables_equals_that_of_the_slot_rectangle(
    ops: kernels.Ops, head_dim: int, dtype: torch.dtype
) -> None:
    checks.check_slot_rectangle(ops, dtype, "cuda", CONTEXTS, head_dim)


@BOTH
def test_attention_over_one_position_is_its_value(ops: kernels.Ops, dtype: torch.dtype) -> None:
    checks.check_context_of_one(ops, dtype, "cuda", 64)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_decode_does_not_depend_on_its_neighbours(ops: kernels.Ops, head_dim: int) -> None:
    checks.check_row_alone(ops, BF16, "cuda", [1, 64, 255, 256, 257, 900, 4097], head_dim)
    # Enough for several heads to a program, and more than programs are launched early for.
    checks.check_row_alone(ops, BF16, "cuda", [1 + 7 * i for i in range(150)], head_dim)


@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_a_plan_made_once_serves_every_layer(ops: kernels.Ops, head_dim: int) -> None:
    checks.check_plan_of_many_layers(ops, BF16, "cuda", [20, 300, 512, 9000], (8, 8), head_dim)
    for count in (HOPPER_PACK_FROM, MERGE_SEVERAL_FROM):
        many = [1 + 11 * i for i in range(count + 3)]
        checks.check_plan_of_many_layers(ops, BF16, "cuda", many, (8, 2), head_dim)


HOPPER = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9,
    reason="for Hopper cards",
)


@HOPPER
@pytest.mark.parametrize(
    ("heads", "block_size", "dtype"),
    [
        ((4, 4), 16, BF16), ((9, 3), 16, BF16), ((8, 1), 32, BF16), ((12, 1), 16, BF16),
        ((32, 2), 64, BF16), ((8, 2), 8, BF16), ((8, 2), 128, torch.float16),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("head_dim", [64, 128])
def test_decode_attention_of_a_hopper_card_equals_the_oracle(
    ops: kernels.Ops, head_dim: int, heads: tuple[int, int], block_size: int, dtype: torch.dtype
) -> None:
    """With one K/V head to a program and, where there are two of 64, with several."""
    few = [1, 63, 64, 65, 255, 256, 257, block_size, block_size + 1, 1000]
    many, more = (
        [1 + 9 * i % 1300 for i in range(n + 3)] for n in (HOPPER_PACK_FROM, MERGE_SEVERAL_FROM)
    )
    for contexts in (few, many, more):
        checks.check_decode(ops, dtype, "cuda", contexts, heads, head_dim, block_size)


@HOPPER
def test_a_hopper_cards_kernel_leaves_what_it_cannot_read_to_the_general_one(
    ops: kernels.Ops,
) -> None:
    q = randn(1, 32, 64, dtype=BF16, device="cuda")
    pool = randn(3, 16, 8, 64, dtype=BF16, device="cuda")
    takes = hopper_attention_decode.takes
    assert takes(q, pool, pool)
    assert not takes(q.float(), pool.float(), pool.float())
    assert not takes(q, pool.half(), pool.half())
    shifted = randn(pool.numel() + 1, dtype=BF16, device="cuda")[1:].view_as(pool)
    for strange in (pool[:, :, ::2], shifted):
        assert not takes(q, strange, pool)
        assert not takes(q, pool, strange)
    for shape in ((3, 4, 8, 64), (3, 24, 8, 64), (3, 96, 8, 64), (3, 16, 1, 64), (3, 16, 8, 32)):
        pool = randn(*shape, dtype=BF16, device="cuda")
        assert not takes(q[..., : shape[-1]], pool, pool)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("count", [3, HOPPER_PACK_FROM + 3, MERGE_SEVERAL_FROM + 3])
def test_a_decode_reads_what_the_kernel_before_it_writes(
    ops: kernels.Ops, count: int, head_dim: int
) -> None:
    """Launched early, with a plan: of every row the newest position is written right before."""
    checks.check_newest_position(
        ops, BF16, "cuda", [1 + 21 * i % 1100 for i in range(count)], head_dim
    )
    checks.check_newest_position(
        ops, BF16, "cuda", [64 * (1 + i % 9) + i % 2 for i in range(count)], head_dim
    )


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_general_kernel_equals_the_oracle_where_another_is_chosen(
    ops: kernels.Ops, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_attention_decode, "takes", lambda *_: False)
    checks.check_attention(ops, BF16, "cuda", CONTEXTS, QUERIES, (32, 8), head_dim, 16)
    checks.check_row_alone(ops, BF16, "cuda", [1 + 7 * i for i in range(150)], head_dim)


@BOTH
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_mixed_step_with_pads_equals_its_parts(
    ops: kernels.Ops, head_dim: int, dtype: torch.dtype
) -> None:
    checks.check_padded_mixed_step(ops, dtype, "cuda", head_dim)


def test_a_prompt_in_chunks_equals_it_whole(ops: kernels.Ops) -> None:
    checks.check_chunks(ops, BF16, "cuda", 700, [1, 17, 64, 65, 200, 512], 64)


@BOTH
@pytest.mark.parametrize("width", [5, 2048, 4096])
def test_gathered_lines_equal_the_oracles(ops: kernels.Ops, width: int, dtype: torch.dtype) -> None:
    checks.check_gather(ops, dtype, "cuda", width)


@pytest.mark.parametrize("count", [1, 5000])
def test_scattered_values_equal_the_oracles(ops: kernels.Ops, count: int) -> None:
    checks.check_scatter(ops, "cuda", count)


@pytest.mark.parametrize("query_lens", [[1], [1] * 200, [1, 7, 3000, 2], [33, 1]])
def test_the_tokens_of_a_step_equal_the_oracles(ops: kernels.Ops, query_lens: list[int]) -> None:
    checks.check_step_tokens(ops, "cuda", query_lens)
    checks.check_step_tokens(ops, "cuda", query_lens, pads=40)


def test_sampling_writes_what_it_samples_and_nothing_else(ops: kernels.Ops) -> None:
    checks.check_sample_writes_its_places_alone(ops, "cuda")


@BOTH
@pytest.mark.parametrize("rows", [16, 100])
def test_sampled_ids_equal_the_oracles(ops: kernels.Ops, rows: int, dtype: torch.dtype) -> None:
    checks.check_sample(ops, dtype, "cuda", rows, 128_256)


def test_ties_take_the_lowest_id_and_non_finite_rows_are_flagged(ops: kernels.Ops) -> None:
    checks.check_ties_and_flags(ops, "cuda")


def test_draws_follow_the_exact_distribution(ops: kernels.Ops) -> None:
    draws = 20_000
    checks.check_distribution(ops, "cuda", 0.7, torch.full((draws,), 42), torch.arange(draws))
    checks.check_distribution(ops, "cuda", 1.3, torch.arange(draws) << 33, torch.full((draws,), 9))


@BOTH
@pytest.mark.parametrize(("vocab", "longest"), [(30, 50), (128_256, 3000)])
def test_penalized_scores_equal_the_oracles(
    ops: kernels.Ops, vocab: int, longest: int, dtype: torch.dtype
) -> None:
    penalty_checks.check_penalties(ops, dtype, "cuda", vocab, longest)


def test_a_penalty_changes_the_draw_of_its_row_alone(ops: kernels.Ops) -> None:
    penalty_checks.check_penalties_draw(ops, "cuda")


@BOTH
@pytest.mark.parametrize("vocab", [20, 4101, 128_256])
def test_log_probabilities_equal_the_oracles(
    ops: kernels.Ops, vocab: int, dtype: torch.dtype
) -> None:
    penalty_checks.check_logprobs(ops, dtype, "cuda", vocab, (0, 1, 20))


@BOTH
def test_log_probabilities_of_many_lines_are_those_that_torch_sorts(
    ops: kernels.Ops, dtype: torch.dtype
) -> None:
    penalty_checks.check_many_logprobs(ops, "cuda", dtype)


def test_a_pool_of_more_than_31_bits_of_elements_is_written_and_read(ops: kernels.Ops) -> None:
    block_size, kv_heads, head_dim = 16, 8, 128
    blocks = 2**31 // (block_size * kv_heads * head_dim) + 9
    shape = (blocks, block_size, kv_heads, head_dim)
    pools = [torch.full(shape, float("nan"), dtype=BF16, device="cuda") for _ in range(2)]
    assert pools[0].numel() > 2**31
    tokens, last = 20, blocks - 1
    slots = torch.arange(tokens, device="cuda") + (blocks - 2) * block_size
    qkv = randn(tokens, 48 * head_dim, dtype=BF16, device="cuda")
    positions = torch.arange(tokens, dtype=torch.int32, device="cuda")
    angles = torch.rand(tokens, head_dim // 2, device="cuda")
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    q = ops.rope_and_write_kv(qkv, positions, cos_sin, slots, *pools, 32)
    small_pools = [torch.full_like(pool[:2], float("nan")) for pool in pools]
    small_slots = torch.arange(tokens, device="cuda")
    ops.rope_and_write_kv(qkv, positions, cos_sin, small_slots, *small_pools, 32)
    outputs = []
    for k_pool, v_pool, table in ((*pools, [last - 1, last]), (*small_pools, [0, 1])):
        case = Paged(
            k_pool, v_pool, torch.tensor([table], dtype=torch.int32, device="cuda"),
            torch.zeros(1, dtype=torch.int32, device="cuda"),
            torch.tensor([tokens], dtype=torch.int32, device="cuda"), [],
        )  # fmt: skip
        outputs += [(checks.decode(ops, q[-1:], case), checks.prefill(ops, q, case, [tokens]))]
    for large, small in zip(*outputs, strict=True):
        assert large.isfinite().all()
        assert torch.equal(large, small)
    assert pools[0][:-2].isnan().all()


def test_ops_can_be_captured_in_a_graph_and_replayed(ops: kernels.Ops) -> None:
    case = checks.paged([300, 17, 1], 8, 64, 16, BF16, "cuda")
    q = randn(3, 32, 64, dtype=BF16, device="cuda")
    expected = checks.decode(ops, q, case)
    still = q.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.paged_attention_decode(
            still, case.k_pool, case.v_pool, case.block_tables, case.rows, case.context_lens,
            0.125, max_context_len=4096,
        )  # fmt: skip
    still.copy_(q)
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, expected)
