import pytest
import torch

import kernels
from kernels import noise
from tests.kernels import checks
from tests.kernels.cases import randn

DRAWS = 20_000
FACES = pytest.mark.parametrize("face", ["reference", "cpu"])


def test_the_noise_bits_are_these_integers_for_ever() -> None:
    seeds = torch.tensor([0, 1, -1, 2**62 + 12345])
    positions = torch.tensor([0, 1, 77, 2**31 - 1], dtype=torch.int32)
    tokens = torch.tensor([0, 1, 128255, 49151], dtype=torch.int32)
    bits = noise.noise_bits(*noise.row_keys(seeds, positions), noise.token_hashes(tokens))
    assert bits.tolist() == [_python_bits(*values) for values in zip(
        seeds.tolist(), positions.tolist(), tokens.tolist(), strict=True
    )]  # fmt: skip


def _python_bits(seed: int, position: int, token: int) -> int:
    """The formula of `kernels.noise` in unbounded integers."""

    def mix(h: int) -> int:
        h ^= h >> 16
        h = h * 0x85EBCA6B & 0xFFFFFFFF
        h ^= h >> 13
        h = h * 0xC2B2AE35 & 0xFFFFFFFF
        return h ^ h >> 16

    a = mix((seed + 0x9E3779B9) & 0xFFFFFFFF)
    b = mix((seed >> 32 & 0xFFFFFFFF) ^ a)
    key0 = mix((position + b) & 0xFFFFFFFF)
    key1 = mix(key0 ^ a)
    bits = mix((mix(token * 0x9E3779B1 & 0xFFFFFFFF) + key0 & 0xFFFFFFFF) ^ key1)
    return bits - (1 << 32) if bits >= 1 << 31 else bits


def test_the_noise_is_finite_at_both_ends() -> None:
    ends = noise.gumbel(torch.tensor([0, -1], dtype=torch.int32))
    assert ends.tolist() == pytest.approx([-2.8115, 16.6355], abs=1e-3)


def test_draws_over_positions_follow_the_exact_distribution() -> None:
    checks.check_distribution(
        kernels.ops("cpu"), "cpu", 0.7, torch.full((DRAWS,), 42), torch.arange(DRAWS)
    )


@pytest.mark.parametrize("shift", [0, 33])
def test_draws_over_seeds_follow_the_exact_distribution(shift: int) -> None:
    seeds = torch.arange(DRAWS) << shift
    checks.check_distribution(kernels.ops("cpu"), "cpu", 1.3, seeds, torch.full((DRAWS,), 9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_cpu_face_draws_the_oracles_ids(dtype: torch.dtype) -> None:
    checks.check_sample(kernels.ops("cpu", "cpu"), dtype, "cpu", 24, 5003)


@FACES
def test_ties_take_the_lowest_id_and_non_finite_rows_are_flagged(face: str) -> None:
    checks.check_ties_and_flags(kernels.ops("cpu", face), "cpu")


@FACES
def test_a_row_draws_the_same_id_whoever_shares_the_batch(face: str) -> None:
    ops, rows = kernels.ops("cpu", face), 12
    logits = randn(rows, 300, dtype=torch.float32)
    temperatures = torch.tensor([0.0, 0.8, 1.0] * 4)
    seeds, positions = torch.arange(rows) * 7, torch.arange(rows, dtype=torch.int32)
    columns = (logits, temperatures, seeds, positions)
    together = checks.draw(ops, *columns)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(5))
    assert torch.equal(checks.draw(ops, *(x[order] for x in columns)), together[order])
    alone = [checks.draw(ops, *(x[i : i + 1] for x in columns)) for i in range(rows)]
    assert torch.equal(torch.cat(alone), together)


@FACES
def test_another_seed_or_position_draws_otherwise(face: str) -> None:
    ops, logits = kernels.ops("cpu", face), torch.zeros(64, 1000)
    warm, positions = torch.ones(64), torch.arange(64, dtype=torch.int32)
    first = checks.draw(ops, logits, warm, torch.zeros(64, dtype=torch.int64), positions)
    second = checks.draw(ops, logits, warm, torch.ones(64, dtype=torch.int64), positions)
    assert len(set(first.tolist())) > 50
    assert int((first == second).sum()) < 5


@FACES
def test_sampling_writes_what_it_samples_and_nothing_else(face: str) -> None:
    checks.check_sample_writes_its_places_alone(kernels.ops("cpu", face), "cpu")


@FACES
def test_no_rows_give_no_ids(face: str) -> None:
    empty = torch.zeros(0)
    columns = (empty.int(), empty.int(), empty, empty.long())
    answers = kernels.ops("cpu", face).sample(
        torch.zeros(0, 5), *columns, torch.zeros((1, 1), dtype=torch.int32)
    )
    assert answers.shape == (0,)
