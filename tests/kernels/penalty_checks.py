"""Penalties and log-probabilities of a face held to the oracle; as tests/kernels/checks.py."""

import torch

from kernels import Ops, reference
from tests.kernels.cases import GUARD, error, guarded, randn

MODES = ((1.5, 0.0, 0.0), (1.0, 0.7, 0.0), (1.0, 0.0, -1.5), (0.3, -2.0, 2.0), (1.0, 0.0, 0.0))


def penalty_case(
    dtype: torch.dtype, vocab: int, longest: int, count: int = 10
) -> dict[str, torch.Tensor]:
    """Rows of 1 to `longest` tokens, many of them repeated, some in the prompt alone, with all of
    MODES; rows without output among them. What lies past a row's tokens is no token. The lines are
    some of the logits', in another order than theirs, and hold zeros of both signs and -inf."""
    generator = torch.Generator().manual_seed(vocab)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    logits = 4 * torch.randn(count + 3, vocab, generator=generator)
    logits[integers(0, 2, *logits.shape) * integers(0, 2, *logits.shape) > 0] = -0.0
    logits[:, integers(0, vocab, 1)] = float("-inf")
    rows = torch.randperm(count + 2, generator=generator)[:count]
    positions = integers(1, longest + 1, count)
    positions[0], positions[1] = longest, 1
    tokens = torch.full((count + 2, longest + 1), -1, dtype=torch.int32)
    for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
        few = integers(0, vocab, max(1, position // 2))
        tokens[row, :position] = few[integers(0, len(few), position)].int()
    prompt_lens = torch.ones(count + 2, dtype=torch.int32)
    prompt_lens[rows] = torch.minimum(integers(1, longest + 1, count), positions).int()
    penalties = torch.full((count + 2, 3), float("nan"))
    penalties[rows] = torch.tensor([MODES[i % len(MODES)] for i in range(count)])
    return {
        "logits": logits.to(dtype),
        "lines": torch.randperm(count + 3, generator=generator)[:count],
        "rows": rows.int(),
        "positions": positions.int(),
        "tokens": tokens,
        "prompt_lens": prompt_lens,
        "penalties": penalties,
    }


def check_penalties(
    ops: Ops, dtype: torch.dtype, device: str, vocab: int, longest: int, *, exact: bool = False
) -> None:
    """The oracle's scores; those of a row alone, and of the rows in reverse, have the same bits,
    and what is read is left as it was."""
    case = penalty_case(dtype, vocab, longest)
    expected = reference.penalize(**case, max_position=longest)
    there = {name: column.to(device) for name, column in case.items()}
    scores = ops.penalize(**there, max_position=longest)
    assert scores.dtype == torch.float32
    if exact:
        assert torch.equal(scores, expected)
    low = expected == float("-inf")
    assert torch.equal(scores.cpu() == float("-inf"), low)
    assert error(scores.cpu().masked_fill(low, 0), expected.masked_fill(low, 0)) < 1e-6
    without = case["penalties"][case["rows"].long()].eq(torch.tensor(MODES[-1])).all(-1)
    untouched = case["logits"][case["lines"][without]].float()
    assert torch.equal(scores.cpu()[without].view(torch.int32), untouched.view(torch.int32))
    assert not torch.equal(scores.cpu()[~without], case["logits"][case["lines"][~without]].float())
    of_lines = ("lines", "rows", "positions")
    for order in ([3], [0], list(range(9, -1, -1))):
        part = there | {name: there[name][torch.tensor(order, device=device)] for name in of_lines}
        again = ops.penalize(**part, max_position=int(part["positions"].max()))
        assert torch.equal(again, scores[torch.tensor(order, device=device)])
    for name, column in case.items():
        assert torch.equal(there[name].cpu().nan_to_num(7), column.nan_to_num(7)), name
    nothing = there | {name: there[name][:0] for name in of_lines}
    assert ops.penalize(**nothing, max_position=1).shape == (0, vocab)


def check_penalties_draw(ops: Ops, device: str) -> None:
    """A row with a penalty draws another token, from its own scores, in its own place."""
    logits = torch.tensor([[5.0, 4.0, 3.0], [5.0, 4.0, 3.0]], device=device)
    rows = torch.tensor([2, 0], dtype=torch.int32, device=device)
    positions = torch.tensor([3, 2], dtype=torch.int32, device=device)
    tokens, buffer = guarded((3, 5), torch.int32, device)
    tokens[2, :3], tokens[0, :2] = torch.tensor([2, 0, 1]), torch.tensor([0, 0])
    prompt_lens = torch.tensor([1, 0, 1], dtype=torch.int32, device=device)
    penalties = torch.tensor([[1.0, 0.0, 0.0], [0.0] * 3, [2.0, 0.0, 0.0]], device=device)
    cold = torch.zeros(3, device=device)
    settings = (cold, cold.long(), tokens)
    answers = ops.sample(logits, rows, positions, *settings)
    lines = torch.tensor([0], device=device)
    scores = ops.penalize(
        logits, lines, rows[:1], positions[:1], tokens, prompt_lens, penalties, max_position=3
    )
    assert scores.tolist() == [[2.5, 2.0, 1.5]]
    scores[0, 0] = -9.0
    ops.scatter(answers, lines, ops.sample(scores, rows[:1], positions[:1], *settings))
    assert answers.tolist() == [1, 0]
    assert tokens.tolist() == [[0, 0, 0, int(GUARD), int(GUARD)], [int(GUARD)] * 5,
                               [2, 0, 1, 1, int(GUARD)]]  # fmt: skip
    assert bool((buffer[:1024] == int(GUARD)).all())
    assert bool((buffer[-1024:] == int(GUARD)).all())


def check_logprobs(
    ops: Ops, dtype: torch.dtype, device: str, vocab: int, counts: tuple[int, ...]
) -> None:
    """The oracle's ids, of lines with many ties and zeros of both signs too, and its values within
    rounding; the first of a larger count are those of a smaller; alone a line has the same bits."""
    generator = torch.Generator().manual_seed(vocab)
    logits = 3 * torch.randn(7, vocab, generator=generator)
    logits[1] = logits[1].round()
    logits[2] = torch.where(torch.arange(vocab) % 3 == 0, -0.0, 0.0)
    logits[3], logits[3, vocab - 1] = float("-inf"), -7.0
    logits[4, vocab // 2 :] = float("-inf")
    logits[5, :2] = torch.tensor([float("nan"), float("inf")])
    logits[6] += 300
    logits = logits.to(dtype)
    lines = torch.tensor([6, 5, 4, 3, 2, 1])
    sampled = torch.randint(0, vocab, (7,), generator=generator).int()
    sampled[3], sampled[5] = vocab - 1, -1
    there = logits.to(device), lines.to(device), sampled.to(device)
    before = None
    for count in counts:
        packed = ops.top_logprobs(*there, count)
        assert packed.shape == (6, 2, 1 + count)
        expected = reference.top_logprobs(logits, lines, sampled, count)
        assert torch.equal(packed[:, 0].cpu(), expected[:, 0])
        values, wanted = (x[:, 1].cpu().view(torch.float32) for x in (packed, expected))
        assert bool((values <= 0).all())
        low = wanted == float("-inf")
        assert torch.equal(values == float("-inf"), low)
        assert (values - wanted)[~low].abs().max() < 1e-5 * 30
        assert not packed[1].any(), "a line that is not finite has zeros"
        if before is not None:
            assert torch.equal(packed[:, :, : before.shape[2]], before)
        before = packed
        for place in range(6):
            alone = ops.top_logprobs(there[0], there[1][place : place + 1], there[2], count)
            assert torch.equal(alone[0], packed[place])
    assert ops.top_logprobs(there[0], there[1][:0], there[2], 3).shape == (0, 2, 4)


def check_many_logprobs(ops: Ops, device: str, dtype: torch.dtype = torch.bfloat16) -> None:
    """Twenty of each of many lines of a large vocabulary, as torch sorts them."""
    logits = 3 * randn(300, 128_256, dtype=dtype, device=device)
    lines, sampled = torch.arange(300, device=device), logits.argmin(-1).int()
    packed = ops.top_logprobs(logits, lines, sampled, 20)
    order = logits.float().sort(descending=True, stable=True, dim=-1).indices[:, :20]
    assert torch.equal(packed[:, 0, 1:], order.int())
    assert torch.equal(packed[:, 0, 0], sampled)
    exact = logits.double().log_softmax(-1).gather(1, packed[:, 0].long())
    assert (packed[:, 1].view(torch.float32) - exact).abs().max() < 1e-5
