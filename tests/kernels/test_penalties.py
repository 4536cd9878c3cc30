"""Penalties and log-probabilities: the oracle against formulas that are not its own, and the CPU
face against the oracle."""

import pytest
import torch

import kernels
from kernels import reference
from tests.kernels import penalty_checks
from tests.kernels.penalty_checks import penalty_case

FACES = pytest.mark.parametrize("face", ["reference", "cpu"])
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def test_the_oracles_repetition_penalty_is_that_of_transformers() -> None:
    # Here, not above: every test process would load it.
    from transformers import RepetitionPenaltyLogitsProcessor

    case = penalty_case(torch.float32, 300, 90)
    case["penalties"][:, 1:] = 0
    for value in (0.4, 1.0, 1.3):
        case["penalties"][:, 0] = value
        scores = reference.penalize(**case, max_position=90)
        theirs = RepetitionPenaltyLogitsProcessor(value)
        for i, (line, row, position) in enumerate(
            zip(case["lines"], case["rows"], case["positions"], strict=True)
        ):
            known = case["tokens"][row, :position].long()[None]
            assert torch.equal(scores[i], theirs(known, case["logits"][line][None].clone())[0])


def test_the_oracles_other_penalties_count_the_output_alone() -> None:
    case = penalty_case(torch.float32, 300, 90)
    case["penalties"][:] = torch.tensor([1.0, 0.25, -0.5])  # no sum of these is rounded
    case["logits"] = case["logits"].round()
    scores = reference.penalize(**case, max_position=90)
    for i, (line, row, position) in enumerate(
        zip(case["lines"], case["rows"], case["positions"], strict=True)
    ):
        output = case["tokens"][row, case["prompt_lens"][row] : position]
        times = torch.bincount(output, minlength=300)
        lowered = case["logits"][line] - (0.25 * times - 0.5 * (times > 0))
        assert torch.equal(scores[i], lowered)


def test_the_order_is_repetition_frequency_presence() -> None:
    logits = torch.tensor([[3.0, -3.0, 1.0, 0.0]])
    tokens = torch.tensor([[2, 0, 1, 0, -1]], dtype=torch.int32)
    one = torch.ones(1, dtype=torch.int32)
    scores = reference.penalize(
        logits, torch.tensor([0]), one - 1, one * 4, tokens, one,
        torch.tensor([[2.0, 0.5, 0.25]]), max_position=4,
    )  # fmt: skip
    assert scores.tolist() == [[3 / 2 - 2 * 0.5 - 0.25, -3 * 2 - 0.5 - 0.25, 1 / 2, 0.0]]


@BOTH
@pytest.mark.parametrize(("vocab", "longest"), [(30, 50), (5003, 400)])
def test_the_cpu_faces_scores_are_the_oracles(vocab: int, longest: int, dtype: torch.dtype) -> None:
    ops = kernels.ops("cpu", "cpu")
    penalty_checks.check_penalties(ops, dtype, "cpu", vocab, longest, exact=True)


@FACES
def test_a_penalty_changes_the_draw_of_its_row_alone(face: str) -> None:
    penalty_checks.check_penalties_draw(kernels.ops("cpu", face), "cpu")


@FACES
def test_a_line_that_is_not_finite_stays_so(face: str) -> None:
    case = penalty_case(torch.float32, 300, 9)
    case["logits"][:, 5] = float("nan")
    scores = kernels.ops("cpu", face).penalize(**case, max_position=9)
    assert bool(scores[:, 5].isnan().all())


def test_the_oracles_log_probabilities_are_those_of_exact_arithmetic() -> None:
    logits = 4 * torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
    lines, sampled = torch.tensor([2, 0]), torch.tensor([7, -1, 5], dtype=torch.int32)
    packed = reference.top_logprobs(logits, lines, sampled, 4)
    for place, line in zip(packed, (2, 0), strict=True):
        exact = logits[line].double()
        exact -= exact.exp().sum().log()
        ids = sorted(range(1000), key=lambda token: (-float(exact[token]), token))[:4]
        assert place[0].tolist() == [int(sampled[line]), *ids]
        assert place[1].view(torch.float32).tolist() == pytest.approx(
            exact[place[0].long()].tolist(), abs=1e-5
        )


@BOTH
@pytest.mark.parametrize("vocab", [20, 1003, 5003])
def test_the_cpu_faces_log_probabilities_are_the_oracles(vocab: int, dtype: torch.dtype) -> None:
    ops = kernels.ops("cpu", "cpu")
    penalty_checks.check_logprobs(ops, dtype, "cpu", vocab, (0, 1, 5, 20))
