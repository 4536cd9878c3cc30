"""The CPU face's attention by a processor's tiles: what it rounds, and that rows stay apart."""

import numpy as np
import pytest
import torch

import kernels
from kernels import amx, cpu_attention, vector, vector_softmax
from kernels.compiled import inner
from tests.kernels import checks
from tests.kernels.cases import Paged, paged, randn

OPS = kernels.ops("cpu", "cpu")
BF16 = torch.bfloat16
needs_amx = pytest.mark.skipif(not amx.is_available(), reason="this processor has no AMX")


@pytest.fixture
def without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "takes_tiles", lambda _q: False)


@pytest.mark.usefixtures("without_tiles")
def test_bfloat16_equals_the_oracle_without_tiles_too() -> None:
    contexts, queries = [1, 2, 16, 17, 67], [1, 2, 1, 16, 17]
    checks.check_attention(OPS, BF16, "cpu", contexts, queries, (6, 2), 64, 16)
    checks.check_row_alone(OPS, BF16, "cpu", [1, 5, 64, 65, 300], 64)
    checks.check_chunks(OPS, BF16, "cpu", 150, [1, 3, 63, 64, 65, 129], 64)


@needs_amx
@pytest.mark.parametrize(
    ("dtype", "head_dim", "tiles"),
    [(BF16, 64, True), (BF16, 80, False), (torch.float32, 64, False), (torch.float16, 64, False)],
)
def test_tiles_attend_where_heads_fill_them(dtype: torch.dtype, head_dim: int, tiles: bool) -> None:
    assert cpu_attention.takes_tiles(torch.zeros(1, 1, head_dim, dtype=dtype)) == tiles


@needs_amx
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (8, 2), (10, 2), (32, 2), (40, 2)])
def test_groups_on_both_sides_of_a_vector_equal_the_oracle(heads: tuple[int, int]) -> None:
    contexts, queries = [1, 3, 64, 65, 200], [1, 2, 17, 40, 33]
    checks.check_attention(OPS, BF16, "cpu", contexts, queries, heads, 64, 16)


@needs_amx
@pytest.mark.parametrize("heads", [2, 4, 5])
def test_many_decodes_give_the_bits_of_each_alone(heads: int) -> None:
    # Many take all K/V heads of a row at a time, one takes them one by one.
    lens = [1 + 17 * i % 300 for i in range(40)]
    case = paged(lens, 2, 64, 16, BF16)
    q = randn(len(lens), 2 * heads, 64, dtype=BF16)
    together = checks.decode(OPS, q, case)
    for i in range(len(lens)):
        rows, contexts = case.rows[i : i + 1], case.context_lens[i : i + 1]
        alone = Paged(case.k_pool, case.v_pool, case.block_tables, rows, contexts, [])
        assert torch.equal(checks.decode(OPS, q[i : i + 1], alone), together[i : i + 1])


@needs_amx
def test_a_large_step_has_large_items_and_gives_the_bits_of_small_ones() -> None:
    lens = [1, 130, 40, 100]
    case = paged([5, 200, 40, 170], 2, 64, 16, BF16)
    q = randn(sum(lens), 6, 64, dtype=BF16)
    tables = case.k_pool, case.block_tables, case.rows
    plan = OPS.plan_prefill(*tables, checks.starts_of(lens), case.context_lens)
    assert plan.items[:, 1].max() == 64
    together = checks.prefill(OPS, q, case, lens, plan=plan)
    for i, length in enumerate(lens):
        rows, contexts = case.rows[i : i + 1], case.context_lens[i : i + 1]
        alone = Paged(case.k_pool, case.v_pool, case.block_tables, rows, contexts, [])
        here = slice(sum(lens[:i]), sum(lens[: i + 1]))
        plan = OPS.plan_prefill(
            case.k_pool, case.block_tables, rows, checks.starts_of([length]), contexts
        )
        assert plan.items[:, 1].max() <= 16
        assert torch.equal(checks.prefill(OPS, q[here], alone, [length]), together[here])


@needs_amx
@pytest.mark.parametrize("rows", [1, 20])
def test_threads_share_the_heads_and_change_no_bit(rows: int) -> None:
    case = paged([400] * rows, 3, 64, 16, BF16)
    q, prompt = randn(rows, 9, 64, dtype=BF16), randn(300 * rows, 9, 64, dtype=BF16, seed=2)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            chunks = checks.prefill(OPS, prompt, case, [300] * rows)
            results.append((checks.decode(OPS, q, case), chunks))
    finally:
        torch.set_num_threads(before)
    for one, two in (results[:2], results[1:]):
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])


@needs_amx
@pytest.mark.parametrize("length", [1, 63, 64, 200])
def test_weights_of_a_query_make_one(length: int) -> None:
    # Rounded weights must be divided by their own sum, not by that of what they were.
    case = paged([length], 2, 64, 16, BF16)
    case.v_pool.view(-1, 2, 64)[case.slots[0]] = 1
    q = 3 * randn(length, 6, 64, dtype=BF16)
    assert checks.prefill(OPS, q, case, [length]).eq(1).all()


@needs_amx
@pytest.mark.parametrize("head_dim", [64, 128])
def test_it_is_no_farther_from_the_exact_result_than_torchs_own(head_dim: int) -> None:
    length, scale = 500, head_dim**-0.5
    case = paged([length], 2, head_dim, 16, BF16)
    q = 2 * randn(length, 2, head_dim, dtype=BF16)
    keys, values = (
        pool.view(-1, 2, head_dim)[case.slots[0]].transpose(0, 1)
        for pool in (case.k_pool, case.v_pool)
    )
    # Of four dimensions, for its kernel that is no plain formula; it rounds weights as well.
    torchs = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], is_causal=True, scale=scale
    )[0].transpose(0, 1)
    scores = torch.einsum("qhd,hkd->hqk", q.double(), keys.double()) * scale
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    exact = torch.einsum("hqk,hkd->qhd", weights, values.double())
    ours = checks.prefill(OPS, q, case, [length])
    mine, its = ((out.double() - exact).abs() for out in (ours, torchs))
    assert mine.mean() <= its.mean()
    assert mine.max() <= its.max()


@needs_amx
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row_and_head(bad: float) -> None:
    case = paged([70, 130, 65], 2, 64, 16, BF16)
    q = randn(3, 6, 64, dtype=BF16)
    clean = checks.decode(OPS, q, case)
    q[1, 2, 5] = bad
    out = checks.decode(OPS, q, case)
    assert out[1, 2].isnan().all()  # and the two beside it, whose scores share its vectors, are not
    out[1, 2] = clean[1, 2]
    assert torch.equal(out, clean)
    q[1, 2, 5] = 1
    case.k_pool.view(-1, 2, 64)[case.slots[1][100], 0, 7] = float("nan")
    out = checks.decode(OPS, q, case)
    assert out[1, :3].isnan().all()
    assert torch.equal(out[1, 3:], clean[1, 3:])
    assert torch.equal(out[::2], clean[::2])


@needs_amx
@pytest.mark.parametrize("size", [100, 1e5, 1e15])
def test_scores_that_are_far_apart_leave_the_largest_ones_value(size: float) -> None:
    case = paged([200], 1, 64, 16, BF16)
    case.k_pool.mul_(size)
    q = size * randn(1, 3, 64, dtype=BF16)
    keys, values = (pool.view(-1, 64)[case.slots[0]] for pool in (case.k_pool, case.v_pool))
    largest = (q[0].double() @ keys.double().T).argmax(-1)
    assert torch.equal(checks.decode(OPS, q, case)[0], values[largest])


@inner
def _powers(x: np.ndarray) -> None:
    for i in range(0, x.size, vector.LANES):
        power = vector_softmax.power_of_2(vector.load(x.ctypes.data, i))
        vector.store(x.ctypes.data, i, power)


def test_powers_of_two_are_exact_to_18_places_and_at_their_ends() -> None:
    x = torch.linspace(-126, 0, 1 << 20)
    out = x.clone()
    _powers(out.numpy())
    exact = x.double().exp2()
    assert ((out.double() - exact) / exact).abs().max() < 2.0**-18
    ends = torch.tensor([0.0, -1.0, -126.0, -127.0, -1e30, -torch.inf, torch.nan] + [0.0] * 9)
    _powers(ends.numpy())
    assert ends[:6].tolist() == [1.0, 0.5, 2.0**-126, 0.0, 0.0, 0.0]
    assert ends[6].isnan()


@inner
def _round_away(x: np.ndarray) -> None:
    for i in range(0, x.size, vector.LANES):
        number = vector_softmax.rounded_away(vector.load(x.ctypes.data, i))
        vector.store(x.ctypes.data, i, number)


def test_weights_are_rounded_to_the_nearest_number_of_bfloat16() -> None:
    numbers = torch.arange(0x3F81, dtype=torch.int16).view(BF16).float()  # 0 to 1
    bits = numbers.view(torch.int32)[:0x3F80]
    for more, up in ((0, 0), (1, 0), (0x7FFF, 0), (0x8000, 1), (0xFFFF, 1)):
        cases = (bits + more).view(torch.float32).clone()
        _round_away(cases.numpy())
        assert torch.equal(cases, numbers[up : up + len(cases)]), more
    ends = torch.full((16,), torch.nan)
    _round_away(ends.numpy())
    assert ends.isnan().all()
