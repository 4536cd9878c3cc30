"""Paged attention in Triton's interpreter; run by test_interpreted_kernels.py."""

import pytest
import torch

import kernels
from kernels import attention_sizes, decode_plan, merge_splits, paged_attention_decode
from kernels.attention_sizes import FEW, MANY, PACK_FROM, packed_heads
from tests.kernels import checks
from tests.kernels.cases import Paged, paged, randn, starts_of
from tests.kernels.interpreter import hasten

hasten()
OPS = kernels.ops("cpu", "triton")
FP32 = torch.float32
SPLIT = 2 * attention_sizes.decode_tile(16, fp32=True)["TILE"]


def set_split(monkeypatch: pytest.MonkeyPatch, positions: int) -> None:
    for module in (decode_plan, merge_splits, paged_attention_decode):
        monkeypatch.setattr(module, "SPLIT", positions)


@pytest.fixture(autouse=True)
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts are cut into splits of two tiles, so that a few positions make many."""
    set_split(monkeypatch, SPLIT)


@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 96, 128, 256])
def test_every_head_dim_equals_the_oracle(head_dim: int) -> None:
    checks.check_attention(OPS, FP32, "cpu", [1, 2, 33, 67], [1, 2, 17, 3], (6, 2), head_dim, 16)


@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 32, 64])
def test_every_block_size_equals_the_oracle_at_its_borders(block_size: int) -> None:
    contexts = [max(block_size - 1, 1), block_size, block_size + 1]
    checks.check_attention(OPS, FP32, "cpu", contexts, [1, 1, 2], (4, 2), 16, block_size)


@pytest.mark.parametrize(
    ("heads", "queries"), [((1, 1), 40), ((3, 1), 25), ((9, 3), 12), ((20, 1), 3)]
)
def test_every_grouping_of_heads_equals_the_oracle(heads: tuple[int, int], queries: int) -> None:
    """More queries than a program takes, of more positions than a tile has."""
    checks.check_attention(OPS, FP32, "cpu", [5, 66], [3, queries], heads, 16, 16)


def test_contexts_at_the_splits_borders_equal_the_oracle() -> None:
    contexts = [SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT + 3]
    checks.check_attention(OPS, FP32, "cpu", contexts, [1, 2, 17, 3], (2, 1), 16, 16)


@pytest.mark.parametrize("many", [FEW, MANY], ids=["in two steps", "in one"])
def test_contexts_of_many_splits_equal_the_oracle(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_splits, "MANY", many)  # that are merged at a time
    contexts = [FEW * SPLIT, FEW * SPLIT + 1, 2 * FEW * SPLIT]
    checks.check_attention(OPS, FP32, "cpu", contexts, [1, 1, 1], (4, 1), 16, 64)


def test_attention_is_written_where_it_is_asked_to() -> None:
    checks.check_out(OPS, FP32, "cpu", [5, SPLIT + 1, 20])


def test_the_read_through_tables_equals_that_of_the_slot_rectangle() -> None:
    checks.check_slot_rectangle(OPS, FP32, "cpu", [1, 16, 17, SPLIT, SPLIT + 1, 40], 16)


def test_attention_over_one_position_is_its_value() -> None:
    checks.check_context_of_one(OPS, FP32, "cpu", 16)


def test_a_plan_made_once_serves_every_layer() -> None:
    checks.check_plan_of_many_layers(OPS, FP32, "cpu", [20, SPLIT + 5], (2, 2))


@pytest.mark.parametrize(
    ("kv_heads", "group", "head_dim", "count"),
    [
        (8, 4, 64, 2), (8, 4, 128, 1), (8, 4, 32, 4), (8, 4, 16, 1), (8, 1, 32, 4), (3, 3, 64, 1),
        (6, 2, 32, 2), (4, 20, 32, 1), (8, 4, 80, 1), (8, 4, 256, 1), (1, 8, 64, 1),
    ],
)  # fmt: skip
def test_heads_are_packed_while_their_queries_and_lines_have_room(
    kv_heads: int, group: int, head_dim: int, count: int
) -> None:
    assert packed_heads(PACK_FROM, kv_heads, group, head_dim) == count
    assert packed_heads(PACK_FROM - 1, kv_heads, group, head_dim) == 1


@pytest.mark.parametrize(
    ("heads", "head_dim", "count"),
    [((4, 4), 32, 4), ((16, 4), 32, 4), ((12, 6), 32, 2), ((6, 2), 64, 2)],
)
def test_packed_heads_equal_the_oracle(
    heads: tuple[int, int], head_dim: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_sizes, "PACK_FROM", 1)
    assert packed_heads(2, heads[1], heads[0] // heads[1], head_dim) == count
    checks.check_attention(OPS, FP32, "cpu", [5, SPLIT + 20], [1, 2], heads, head_dim, 16)


def test_a_decode_does_not_depend_on_its_neighbours() -> None:
    checks.check_row_alone(OPS, FP32, "cpu", [1, SPLIT, SPLIT + 1, 2 * SPLIT + 3], 16)


def test_a_prompt_in_chunks_equals_it_whole() -> None:
    checks.check_chunks(OPS, FP32, "cpu", 70, [1, 17, 33, 64], 16)


def test_one_pass_and_splits_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    set_split(monkeypatch, attention_sizes.SPLIT)
    case = paged([700], 1, 16, 16)
    q = randn(1, 2, 16, dtype=FP32)
    torch.testing.assert_close(
        checks.decode(OPS, q, case), checks.prefill(OPS, q, case, [1]), rtol=1e-5, atol=1e-6
    )


def test_a_context_of_nothing_gives_zeros() -> None:
    case = paged([5, 1], 1, 16, 8)
    case.context_lens[1] = 0
    out = checks.decode(OPS, randn(2, 2, 16, dtype=FP32), case)
    assert out[1].eq(0).all()
    assert out[0].isfinite().all()


def test_a_generous_bound_on_contexts_changes_nothing() -> None:
    case = paged([3, 40], 1, 16, 8)
    q = randn(2, 2, 16, dtype=FP32)
    exact = checks.decode(OPS, q, case)
    arguments = (case.k_pool, case.v_pool, case.block_tables, case.rows)
    wide = OPS.paged_attention_decode(
        q, *arguments, case.context_lens, 0.25, max_context_len=3 * SPLIT
    )
    assert torch.equal(wide, exact)
    wide = OPS.paged_attention_prefill(
        q, *arguments, starts_of([1, 1]), case.context_lens, 0.25, max_context_len=3 * SPLIT
    )
    assert torch.equal(wide, checks.prefill(OPS, q, case, [1, 1]))


def test_a_mixed_step_with_pads_equals_its_parts() -> None:
    checks.check_padded_mixed_step(OPS, FP32, "cpu", 16)


def test_padded_rows_on_the_scratch_block_change_no_live_row() -> None:
    case = paged([3, 40], 1, 16, 8)
    q = randn(4, 2, 16, dtype=FP32)
    alone = checks.decode(OPS, q[:2], case)
    before = case.k_pool.clone(), case.v_pool.clone()
    spare = torch.tensor([r for r in range(4) if r not in case.rows.tolist()], dtype=torch.int32)
    case.block_tables[spare.long()] = 0
    rows = torch.cat((case.rows, spare))
    lens = torch.cat((case.context_lens, torch.ones(2, dtype=torch.int32)))
    padded = Paged(case.k_pool, case.v_pool, case.block_tables, rows, lens, [])
    assert torch.equal(checks.decode(OPS, q, padded)[:2], alone)
    torch.testing.assert_close((case.k_pool, case.v_pool), before, equal_nan=True)


def test_slots_whose_offset_passes_31_bits_are_read() -> None:
    block_size, kv_heads, head_dim = 16, 3, 64
    block = 2**31 // (block_size * kv_heads * head_dim) + 7
    # Lazily allocated: only the pages of the last block are ever touched. One by one, as a system
    # refuses at once what is more than all its memory.
    pools = [torch.empty(block + 1, block_size, kv_heads, head_dim) for _ in range(2)]
    for pool, last in zip(pools, randn(2, block_size, kv_heads, head_dim, dtype=FP32), strict=True):
        pool[block] = last
    tables = torch.tensor([[block]], dtype=torch.int32)
    small = Paged(
        pools[0][block:], pools[1][block:], torch.zeros_like(tables),
        torch.zeros(1, dtype=torch.int32), torch.tensor([9], dtype=torch.int32), [],
    )  # fmt: skip
    large = Paged(pools[0], pools[1], tables, small.rows, small.context_lens, [])
    q = randn(2, 3, head_dim, dtype=FP32)
    assert torch.equal(checks.decode(OPS, q[:1], large), checks.decode(OPS, q[:1], small))
    assert torch.equal(checks.prefill(OPS, q, large, [2]), checks.prefill(OPS, q, small, [2]))
