"""Each op of a face held to the oracle; used for the CPU face, the interpreter and the GPU.

`ops` is the face's table; tensors are made on `device`, and the oracle runs on copies on the CPU.
"""

import torch

from kernels import Ops, reference
from kernels import ops as op_table
from tests.kernels.cases import GUARD, Paged, error, guarded, limit, paged, randn, starts_of


def check_norms(ops: Ops, dtype: torch.dtype, device: str, tokens: int, width: int) -> None:
    x = randn(tokens, width, dtype=dtype, device=device)
    weight = randn(width, dtype=dtype, device=device, seed=3)
    expected = reference.rms_norm(x.cpu(), weight.cpu(), 1e-5)
    assert error(ops.rms_norm(x, weight, 1e-5), expected) < limit(dtype)


def check_silu(ops: Ops, dtype: torch.dtype, device: str, tokens: int, width: int) -> None:
    gate_up = 4 * randn(tokens, 2 * width, dtype=dtype, device=device)
    assert error(ops.silu_and_mul(gate_up), reference.silu_and_mul(gate_up.cpu())) < limit(dtype)


def check_rope(
    ops: Ops,
    dtype: torch.dtype,
    device: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    slots: list[int],
) -> None:
    """Equal to the oracle in q and the slots written; nothing else in or near a pool moves."""
    tokens, blocks = len(slots), max(slots) // block_size + 2
    qkv = randn(tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype, device=device)
    angles = torch.rand(101, head_dim // 2, generator=torch.Generator().manual_seed(4)) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.tensor([(37 * i + 100) % 101 for i in range(tokens)], dtype=torch.int32)
    shape = (blocks, block_size, kv_heads, head_dim)
    pools = [guarded(shape, dtype, device) for _ in range(2)]
    expected_pools = [torch.full(shape, GUARD, dtype=dtype) for _ in range(2)]
    slot_mapping = torch.tensor(slots)
    expected = reference.rope_and_write_kv(
        qkv.cpu(), positions, cos_sin, slot_mapping, *expected_pools, heads
    )
    inputs = (x.to(device) for x in (positions, cos_sin, slot_mapping))
    q = ops.rope_and_write_kv(qkv, *inputs, pools[0][0], pools[1][0], heads)
    assert q.shape == (tokens, heads, head_dim)
    assert q.is_contiguous()
    assert error(q, expected) < limit(dtype)
    for (pool, buffer), expected_pool in zip(pools, expected_pools, strict=True):
        written, wanted = (p.view(-1, kv_heads, head_dim).cpu() for p in (pool, expected_pool))
        assert error(written[slot_mapping], wanted[slot_mapping]) < limit(dtype)
        untouched = torch.ones(len(written), dtype=torch.bool)
        untouched[slot_mapping] = False
        assert bool((written[untouched] == GUARD).all())
        assert bool((buffer[:1024] == GUARD).all())
        assert bool((buffer[-1024:] == GUARD).all())
    assert torch.equal(
        pools[1][0].view(-1, kv_heads, head_dim)[slot_mapping].cpu(),
        qkv.view(tokens, -1, head_dim)[:, heads + kv_heads :].cpu(),
    )


def decode(ops: Ops, q: torch.Tensor, case: Paged, **kwargs: object) -> torch.Tensor:
    return ops.paged_attention_decode(
        q, case.k_pool, case.v_pool, case.block_tables, case.rows, case.context_lens,
        q.shape[-1] ** -0.5, max_context_len=case.max_context_len, **kwargs,
    )  # fmt: skip


def prefill(
    ops: Ops, q: torch.Tensor, case: Paged, query_lens: list[int], **kwargs: object
) -> torch.Tensor:
    return ops.paged_attention_prefill(
        q, case.k_pool, case.v_pool, case.block_tables, case.rows,
        starts_of(query_lens, str(q.device)), case.context_lens, q.shape[-1] ** -0.5,
        max_context_len=case.max_context_len, **kwargs,
    )  # fmt: skip


def _on_cpu(case: Paged) -> Paged:
    tensors = (case.k_pool, case.v_pool, case.block_tables, case.rows, case.context_lens)
    return Paged(*(x.cpu() for x in tensors), case.slots)


def check_attention(
    ops: Ops,
    dtype: torch.dtype,
    device: str,
    context_lens: list[int],
    query_lens: list[int],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
) -> None:
    """Decode and prefill equal the oracle, whatever lies in slots past the context lengths."""
    hq, hk = heads
    oracle = op_table("cpu", "reference")
    one = randn(len(context_lens), hq, head_dim, dtype=dtype, device=device)
    many = randn(sum(query_lens), hq, head_dim, dtype=dtype, device=device, seed=2)
    results = []
    for poison in (float("nan"), 1e4):
        case = paged(context_lens, hk, head_dim, block_size, dtype, device, poison)
        results.append((decode(ops, one, case), prefill(ops, many, case, query_lens)))
    for actual, other in zip(*results, strict=True):
        assert torch.equal(actual, other), "a slot past a context length moved an output"
    expected = decode(oracle, one.cpu(), _on_cpu(case))
    assert error(results[0][0], expected) < limit(dtype)
    expected = prefill(oracle, many.cpu(), _on_cpu(case), query_lens)
    assert error(results[0][1], expected) < limit(dtype)


def check_decode(
    ops: Ops,
    dtype: torch.dtype,
    device: str,
    context_lens: list[int],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
) -> None:
    """As `check_attention`, of decodes alone."""
    q = randn(len(context_lens), heads[0], head_dim, dtype=dtype, device=device)
    results = []
    for poison in (float("nan"), 1e4):
        case = paged(context_lens, heads[1], head_dim, block_size, dtype, device, poison)
        results.append(decode(ops, q, case))
    assert torch.equal(*results), "a slot past a context length moved an output"
    expected = decode(op_table("cpu", "reference"), q.cpu(), _on_cpu(case))
    assert error(results[0], expected) < limit(dtype)


def check_newest_position(
    ops: Ops, dtype: torch.dtype, device: str, context_lens: list[int], head_dim: int
) -> None:
    """A step's decodes read the K/V that rope has written right before, with nothing between."""
    heads, kv_heads, tokens = 6, 2, len(context_lens)
    case = paged(context_lens, kv_heads, head_dim, 16, dtype, device)
    tables = (case.block_tables, case.rows, case.context_lens)
    slots = torch.stack([own[-1] for own in case.slots]).to(device)
    for pool in (case.k_pool, case.v_pool):
        pool.view(-1, kv_heads, head_dim)[slots] = float("nan")
    qkv = randn(tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype, device=device)
    positions = (case.context_lens - 1).int()
    angles = torch.rand(max(context_lens), head_dim // 2).to(device)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    pools = case.k_pool.clone(), case.v_pool.clone()
    still = Paged(*pools, *tables, [])
    q = ops.rope_and_write_kv(qkv, positions, cos_sin, slots, *pools, heads)
    plan = ops.plan_decode(pools[0], *tables, sum(context_lens))
    expected = decode(ops, q, still)
    assert expected.isfinite().all()
    for _ in range(3):
        pools = case.k_pool.clone(), case.v_pool.clone()
        q = ops.rope_and_write_kv(qkv, positions, cos_sin, slots, *pools, heads)
        assert torch.equal(decode(ops, q, Paged(*pools, *tables, []), plan=plan), expected)


def check_slot_rectangle(
    ops: Ops, dtype: torch.dtype, device: str, context_lens: list[int], head_dim: int
) -> None:
    """The read through block tables equals a read of the [rows, max_context] rectangle of slots,
    short rows padded with scratch slots and masked by the context length, whatever scratch
    holds."""
    kv_heads, group, block_size = 2, 3, 16
    width = max(context_lens)
    inside = torch.arange(width) < torch.tensor(context_lens)[:, None]
    q = randn(len(context_lens), kv_heads * group, head_dim, dtype=dtype, device=device)
    results = []
    for scratch in (float("nan"), 1e4, 0.0):
        case = paged(context_lens, kv_heads, head_dim, block_size, dtype, device, scratch)
        results.append(decode(ops, q, case))
        assert torch.equal(results[-1], results[0]), "a scratch slot moved an output"
    rectangle = torch.zeros((len(context_lens), width), dtype=torch.int64)
    for line, slots in zip(rectangle, case.slots, strict=True):
        line[: len(slots)] = slots
    assert rectangle[~inside].eq(0).all()  # slot 0 is scratch
    keys, values = (
        pool.cpu().view(-1, kv_heads, head_dim)[rectangle].repeat_interleave(group, dim=2).double()
        for pool in (case.k_pool, case.v_pool)
    )
    scores = torch.einsum("shd,schd->shc", q.cpu().double(), keys) * head_dim**-0.5
    weights = scores.masked_fill(~inside[:, None], float("-inf")).softmax(-1)
    expected = torch.einsum("shc,schd->shd", weights, values).to(dtype)
    assert error(results[0], expected) < limit(dtype)


def check_out(ops: Ops, dtype: torch.dtype, device: str, context_lens: list[int]) -> None:
    """A result written to `out`, a stretch of a larger tensor, is the same bits; nothing near it
    moves."""
    case = paged(context_lens, 2, 16, 16, dtype, device)
    query_lens = [1] * (len(context_lens) - 1) + [context_lens[-1]]
    one = randn(len(context_lens), 6, 16, dtype=dtype, device=device)
    many = randn(sum(query_lens), 6, 16, dtype=dtype, device=device)
    for result, run in (
        (decode(ops, one, case), lambda out: decode(ops, one, case, out=out)),
        (
            prefill(ops, many, case, query_lens),
            lambda out: prefill(ops, many, case, query_lens, out=out),
        ),
    ):
        out, buffer = guarded(tuple(result.shape), dtype, device)
        assert run(out).data_ptr() == out.data_ptr()
        assert torch.equal(out, result)
        assert bool((buffer[:1024] == GUARD).all())
        assert bool((buffer[-1024:] == GUARD).all())


def check_context_of_32768(ops: Ops, dtype: torch.dtype, device: str) -> None:
    """Decode and prefill equal the oracle over the longest context promised."""
    check_attention(ops, dtype, device, [32768, 1], [2, 1], (2, 1), 16, 16)


def check_context_of_one(ops: Ops, dtype: torch.dtype, device: str, head_dim: int) -> None:
    """Attention over one position is that position's value, exactly."""
    case = paged([1, 1, 1], 2, head_dim, 8, dtype, device)
    q = randn(3, 6, head_dim, dtype=dtype, device=device)
    values = case.v_pool.cpu().view(-1, 2, head_dim)[torch.cat(case.slots)]
    expected = values.repeat_interleave(3, dim=1)
    assert torch.equal(decode(ops, q, case).cpu(), expected)
    assert torch.equal(prefill(ops, q, case, [1, 1, 1]).cpu(), expected)


def check_row_alone(
    ops: Ops, dtype: torch.dtype, device: str, context_lens: list[int], head_dim: int
) -> None:
    """A row's decode is the same bits alone, in company, and in reverse order."""
    case = paged(context_lens, 2, head_dim, 16, dtype, device)
    q = randn(len(context_lens), 6, head_dim, dtype=dtype, device=device)
    together = decode(ops, q, case)
    reverse = torch.arange(len(context_lens) - 1, -1, -1, device=device)
    orders = [reverse, *(torch.tensor([i], device=device) for i in range(len(context_lens)))]
    for order in orders:
        part = Paged(
            case.k_pool, case.v_pool, case.block_tables, case.rows[order],
            case.context_lens[order], [],
        )  # fmt: skip
        assert torch.equal(decode(ops, q[order], part), together[order])


def check_plan_of_many_layers(
    ops: Ops,
    dtype: torch.dtype,
    device: str,
    context_lens: list[int],
    heads: tuple[int, int],
    head_dim: int = 16,
) -> None:
    """A plan with room to spare, made once, gives every layer the bits of a plan of its own. Where
    it holds no item lies what would lead a program astray."""
    hq, hk = heads
    case = paged(context_lens, hk, head_dim, 16, dtype, device)
    tables = (case.block_tables, case.rows, case.context_lens)
    q = randn(len(context_lens), hq, head_dim, dtype=dtype, device=device)
    plan = ops.plan_decode(case.k_pool, *tables, 4 * sum(context_lens))
    count = int(plan.count)
    assert count < plan.capacity
    plan.items[count:] = torch.tensor([7, -3, 2_000_000_000, -9], dtype=torch.int32, device=device)
    for layer in range(2):
        pools = [
            randn(*case.k_pool.shape, dtype=dtype, device=device, seed=2 * layer + i)
            for i in range(2)
        ]
        own = Paged(*pools, *tables, [])
        assert torch.equal(decode(ops, q, own, plan=plan), decode(ops, q, own))


def check_padded_mixed_step(ops: Ops, dtype: torch.dtype, device: str, head_dim: int) -> None:
    """Decodes and chunks write one tensor. Decodes of negative context, which lie over tokens of
    chunks, chunks of no tokens, and tokens of no sequence change nothing."""
    case = paged([3, 70, 40, 90, 18], 2, head_dim, 16, dtype, device)
    query_lens, decodes, pads = [1, 1, 40, 2, 17], 2, 4
    q = randn(sum(query_lens) + pads, 6, head_dim, dtype=dtype, device=device)
    one, many = slice(0, decodes), slice(decodes, None)
    parts = [
        Paged(case.k_pool, case.v_pool, case.block_tables, case.rows[i], case.context_lens[i], [])
        for i in (one, many)
    ]
    wanted = [
        decode(ops, q[:decodes], parts[0]),
        prefill(ops, q[decodes:-pads], parts[1], query_lens[decodes:]),
    ]
    out, buffer = guarded(tuple(q.shape), dtype, device)
    lens = case.context_lens.clone()
    lens[decodes:] = -1
    decode(
        ops,
        q[: len(lens)],
        Paged(case.k_pool, case.v_pool, case.block_tables, case.rows, lens, []),
        out=out[: len(lens)],
    )
    assert bool((out[decodes:] == GUARD).all())
    starts = starts_of(query_lens, device).clamp(min=decodes)
    padded = [torch.cat((x, x[-1:], x[-1:])) for x in (case.rows, starts, case.context_lens)]
    ops.paged_attention_prefill(
        q, case.k_pool, case.v_pool, case.block_tables, *padded, head_dim**-0.5,
        max_context_len=90, out=out,
    )  # fmt: skip
    assert torch.equal(out[:-pads], torch.cat(wanted))
    assert bool((out[-pads:] == GUARD).all())
    assert bool((buffer[:1024] == GUARD).all())
    assert bool((buffer[-1024:] == GUARD).all())


def check_chunks(
    ops: Ops, dtype: torch.dtype, device: str, length: int, cuts: list[int], head_dim: int
) -> None:
    """A prompt's outputs are the same bits whole and in chunks that end at `cuts`."""
    case = paged([length], 2, head_dim, 16, dtype, device)
    q = randn(length, 6, head_dim, dtype=dtype, device=device)
    whole = prefill(ops, q, case, [length])
    start = 0
    for end in [*cuts, length]:
        lens = torch.tensor([end], dtype=torch.int32, device=device)
        part = Paged(case.k_pool, case.v_pool, case.block_tables, case.rows, lens, [])
        assert torch.equal(prefill(ops, q[start:end], part, [end - start]), whole[start:end])
        start = end


def draw(
    ops: Ops,
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """`ops.sample` of lines that each have a row of their own, in reverse order; each line's
    settings are given in the lines' order. Also what is written to the rows is checked."""
    lines = len(logits)
    rows = torch.arange(lines - 1, -1, -1, dtype=torch.int32, device=logits.device)
    width = int(positions.max()) + 1
    # Lazily allocated on a CPU: only the pages written are ever touched.
    tokens = torch.empty((lines, width), dtype=torch.int32, device=logits.device)
    answers = ops.sample(
        logits, rows, positions.int(), temperatures.flip(0), seeds.flip(0), tokens
    )  # fmt: skip
    assert answers.dtype == torch.int32
    written = tokens[rows.long(), positions.long()]
    assert torch.equal(written, answers.clamp(min=0))
    return answers


def check_sample(ops: Ops, dtype: torch.dtype, device: str, rows: int, vocab: int) -> None:
    """The oracle's ids for greedy, warm, tied and non-finite rows in one batch."""
    logits = 3 * randn(rows, vocab, dtype=dtype)
    temperatures = torch.tensor([(0.0, 1.0, 0.5, 2.0)[i % 4] for i in range(rows)])
    seeds = torch.tensor([(-1, 0, 2**62 + 5, 42)[i % 4] + i // 4 for i in range(rows)])
    positions = torch.arange(rows, dtype=torch.int32) * 1000
    columns = (logits, temperatures, seeds, positions)
    answers = draw(ops, *(x.to(device) for x in columns))
    assert torch.equal(answers.cpu(), draw(op_table("cpu", "reference"), *columns))


def check_sample_writes_its_places_alone(ops: Ops, device: str) -> None:
    """Of the rows' tokens, and of a given `out`, only what is sampled moves."""
    logits = randn(3, 50, dtype=torch.float32, device=device)
    logits[2, 7] = float("nan")
    rows = torch.tensor([5, 0, 3], dtype=torch.int32, device=device)
    positions = torch.tensor([0, 8, 4], dtype=torch.int32, device=device)
    tokens, buffer = guarded((6, 9), torch.int32, device)
    out, out_buffer = guarded((3,), torch.int32, device)
    before, out_before = buffer.clone(), out_buffer.clone()
    cold = torch.zeros(6, device=device)
    answers = ops.sample(logits, rows, positions, cold, cold.long(), tokens, out)
    assert answers.data_ptr() == out.data_ptr()
    expected = [*logits[:2].argmax(-1).tolist(), -1]
    assert answers.tolist() == expected
    before[1024 : 1024 + 54].view(6, 9)[rows.long(), positions.long()] = answers.clamp(min=0)
    out_before[1024:1027] = answers
    assert torch.equal(buffer, before)
    assert torch.equal(out_buffer, out_before)


def check_gather(ops: Ops, dtype: torch.dtype, device: str, width: int) -> None:
    """The lines asked for, in order and repeated, by either type of index."""
    table = randn(7, width, dtype=dtype, device=device)
    for index_dtype in (torch.int32, torch.int64):
        index = torch.tensor([6, 0, 3, 3], dtype=index_dtype, device=device)
        gathered = ops.gather_rows(table, index)
        assert torch.equal(gathered.cpu(), reference.gather_rows(table.cpu(), index.cpu()))
        out, buffer = guarded((4, width), dtype, device)
        assert ops.gather_rows(table, index, out).data_ptr() == out.data_ptr()
        assert torch.equal(out, gathered)
        assert bool((buffer[:1024] == GUARD).all())
        assert bool((buffer[1024 + 4 * width :] == GUARD).all())
    assert ops.gather_rows(table, index[:0]).shape == (0, width)


def check_scatter(ops: Ops, device: str, count: int) -> None:
    """Values of every type that rows hold come to their places, and nothing else moves."""
    for dtype in (torch.int32, torch.int64, torch.float32):
        out, buffer = guarded((2 * count + 3,), dtype, device)
        expected = buffer.cpu()
        at = torch.randperm(2 * count + 3, generator=torch.Generator().manual_seed(1))[:count]
        values = (1000 * randn(count, dtype=torch.float32, seed=2)).to(dtype)
        reference.scatter(expected[1024 : 1024 + len(out)], at, values)
        ops.scatter(out, at.to(device), values.to(device))
        assert torch.equal(buffer.cpu(), expected)


def check_step_tokens(ops: Ops, device: str, query_lens: list[int], pads: int = 0) -> None:
    """Ids and positions of ragged sequences whose rows' other tokens are poison; zeros for tokens
    past them."""
    context_lens = [length + 3 * i for i, length in enumerate(query_lens)]
    lines = len(query_lens) + 2
    rows = torch.randperm(lines, generator=torch.Generator().manual_seed(2))[: len(query_lens)]
    tokens = torch.full((lines, max(context_lens) + 1), -1, dtype=torch.int32)
    for row, context, length in zip(rows.tolist(), context_lens, query_lens, strict=True):
        tokens[row, context - length : context] = torch.randint(0, 1000, (length,)).int()
    columns = (tokens, rows.int(), starts_of(query_lens), torch.tensor(context_lens).int())
    bounds = (sum(query_lens) + pads, max(query_lens, default=1))
    expected = reference.step_tokens(*columns, *bounds)
    assert bool((expected[0] >= 0).all())
    assert not expected[0][sum(query_lens) :].any()
    actual = ops.step_tokens(*(x.to(device) for x in columns), *bounds)
    for mine, wanted in zip(actual, expected, strict=True):
        assert mine.dtype == torch.int32
        assert torch.equal(mine.cpu(), wanted)


def check_ties_and_flags(ops: Ops, device: str) -> None:
    inf, nan = float("inf"), float("nan")
    lines = [
        ([1.0, 1.0, 0.0], 0, False),
        ([0.0, 2.0, 2.0], 1, False),
        ([-inf, -inf, -3.0], 2, False),
        ([5.0, 5.0, 5.0], 0, False),
        ([0.0, nan, 9.0], 0, True),
        ([0.0, inf, 9.0], 0, True),
        ([-inf, -inf, -inf], 0, True),
    ]
    count = len(lines)
    logits = torch.tensor([values for values, _, _ in lines], device=device)
    seeds = torch.arange(count, device=device)
    positions = torch.arange(count, dtype=torch.int32, device=device)
    cold = torch.zeros(count, device=device)
    expected = [-1 if flag else token for _, token, flag in lines]
    assert draw(ops, logits, cold, seeds, positions).tolist() == expected
    warm = draw(ops, logits, cold + 1, seeds, positions)
    assert warm[2] == 2, "a token of -inf was drawn"
    assert bool((warm[:4] >= 0).all())
    assert warm[4:].tolist() == [-1, -1, -1]
    tiny = draw(ops, logits[:4], cold[:4] + 1e-30, seeds[:4], positions[:4])
    assert tiny.tolist() == [0, 1, 2, 0]
    huge = torch.tensor([[0.0, 3e38, 3.2e38]], device=device)  # too large once divided by a half
    assert draw(ops, huge, cold[:1] + 0.5, seeds[:1], positions[:1]).tolist() == [1]


def check_distribution(
    ops: Ops, device: str, temperature: float, seeds: torch.Tensor, positions: torch.Tensor
) -> None:
    """Draws of five tokens lie within 4 standard deviations of the exact distribution."""
    draws = len(seeds)
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    columns = (
        logits.repeat(draws, 1), torch.full((draws,), temperature), seeds, positions.int()
    )  # fmt: skip
    ids = draw(ops, *(x.to(device) for x in columns))
    assert bool((ids >= 0).all())
    share = torch.bincount(ids.cpu(), minlength=5) / draws
    exact = (logits / temperature).softmax(-1)
    sigma = (exact * (1 - exact) / draws).sqrt()
    assert bool(((share - exact).abs() < 4 * sigma).all()), (share, exact)
