"""What the forward reads, writes and returns."""

from pathlib import Path

import pytest
import torch

from tests.player import Player, load_llama
from tests.tiny_llama import tiny_llama
from worker.model.llama import Llama

A, B = [1, 2, 3, 4, 5, 6, 7, 8, 9], [200, 100, 50]


@pytest.fixture
def llama(tmp_path: Path) -> Llama:
    return load_llama(tiny_llama(tmp_path))


def written(player: Player) -> torch.Tensor:
    """[blocks, block_size] bool: the slots that hold K and V in every layer."""
    k, v = (~pool.isnan() for pool in (player.pool.k, player.pool.v))
    assert torch.equal(k, v)
    slots = k.flatten(3)
    assert torch.equal(slots.all(-1), slots.any(-1))
    assert torch.equal(slots.all(-1).all(0), slots.any(-1).any(0))
    return slots.all(-1).all(0)


def test_logits_are_returned_for_the_tokens_that_are_sampled_after_only(llama: Llama) -> None:
    every = Player(llama, [9, 3]).step({0: A, 1: B})
    assert every.shape == (12, 256)
    some = Player(llama, [9, 3]).step({0: A, 1: B}, samples=[8, 11])
    assert torch.equal(some, every[[8, 11]])
    assert torch.equal(Player(llama, [9, 3]).step({0: A, 1: B}, samples=[11]), every[[11]])


def test_a_step_that_samples_nothing_returns_nothing_and_writes_its_tokens(llama: Llama) -> None:
    expected = Player(llama, [9]).step({0: A}, samples=[8])
    player = Player(llama, [9])
    assert player.step({0: A[:6]}, samples=[]).shape == (0, 256)
    assert written(player).sum() == 6
    assert torch.equal(player.step({0: A[6:]}, samples=[2]), expected)


def test_a_row_of_two_tokens_occupies_two_slots_whoever_shares_its_step(llama: Llama) -> None:
    player = Player(llama, [9, 3, 2], block_size=4)
    player.step({0: A, 1: B, 2: [7, 7]})
    slots = written(player)
    assert slots.sum() == 9 + 3 + 2
    assert slots[player.tables[2, 0]].tolist() == [True, True, False, False]
    assert slots[0].tolist() == [False] * 4  # the scratch block


def test_one_step_of_decodes_and_chunks_equals_a_step_for_each(llama: Llama) -> None:
    apart, together = (Player(llama, [9, 9, 3, 3]) for _ in range(2))
    for player in (apart, together):
        player.step({0: A[:4], 1: A[:7], 2: B[:1]})
    steps = [{0: A[4:5]}, {2: B[1:2]}, {1: A[7:]}, {3: B}]
    expected = torch.cat([apart.step(step) for step in steps])
    mixed = together.step({0: A[4:5], 1: A[7:], 2: B[1:2], 3: B})
    assert torch.equal(mixed, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_logits_do_not_depend_on_chunks_or_neighbours(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    llama = load_llama(tiny_llama(tmp_path), dtype)
    assert llama.dtype is dtype
    player = Player(llama, [9])
    alone = torch.cat([player.step({0: [token]}) for token in A])
    assert alone.dtype in (dtype, torch.float32)
    chunked = Player(llama, [9] * 40)
    neighbours = dict.fromkeys(range(1, 40), B)
    parts = [
        chunked.step({0: A[:2]}),
        chunked.step({0: A[2:5], **neighbours})[:3],
        chunked.step({0: A[5:9]}),
    ]
    assert torch.equal(torch.cat(parts), alone)


def test_int64_token_ids_are_the_same_as_int32(llama: Llama) -> None:
    import dataclasses

    player = Player(llama, [9])
    inputs = player.inputs({0: A})
    wide = dataclasses.replace(inputs, token_ids=inputs.token_ids.long())
    assert torch.equal(
        llama.forward(inputs, player.pool), llama.forward(wide, Player(llama, [9]).pool)
    )


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shared", [8, 136])
def test_logits_behind_a_prefix_that_another_row_computed_are_ones_own_to_the_bit(
    tmp_path: Path, dtype: torch.dtype, shared: int
) -> None:
    llama = load_llama(tiny_llama(tmp_path), dtype)
    prompt = torch.randint(0, 256, (150,), generator=torch.Generator().manual_seed(3)).tolist()
    alone = Player(llama, [150], block_size=8).step({0: prompt})
    player = Player(llama, [160, 150, 40], block_size=8)
    other = [*prompt[:shared], *range(20)]
    for begin, end in ((0, 3), (3, 50), (50, 51), (51, len(other))):
        player.step({0: other[begin:end], 2: [7]})
    player.tables[1, : shared // 8] = player.tables[0, : shared // 8]
    player.lengths[1] = shared
    together = player.step({0: [9], 1: prompt[shared:-1], 2: [5, 6, 7]})
    assert torch.equal(together[1 : 150 - shared], alone[shared:-1])
    last = player.step({1: prompt[-1:]})
    assert torch.equal(last, alone[-1:])
