"""The default model on a GPU: what training made of weights, through the Triton kernels."""

from pathlib import Path

import pytest
import torch

from deploy.model.fetch import fetch
from tests.player import Player, greedy, load_llama
from tests.worker.model.smollm2_prompts import twenty_prompts
from worker.model.llama import Llama

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

NEW_TOKENS = 64


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch()


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    return twenty_prompts(folder)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Llama:
    """In fp32."""
    return load_llama(folder, torch.float32, "cuda", face="reference")


@pytest.fixture(scope="module")
def tokens(oracle: Llama, prompts: list[list[int]]) -> list[list[int]]:
    """The oracle's, greedy."""
    with torch.no_grad():
        return greedy(oracle, prompts, NEW_TOKENS, block_size=16)


@torch.no_grad()
def test_64_greedy_tokens_of_20_prompts_equal_the_oracles_in_fp32(
    folder: Path, prompts: list[list[int]], tokens: list[list[int]]
) -> None:
    assert len({token for row in tokens for token in row}) > 200  # text, not one token for ever
    ours = load_llama(folder, torch.float32, "cuda")
    assert greedy(ours, prompts, NEW_TOKENS, block_size=16) == tokens


def teacher_forced(model: Llama, rows: list[list[int]], lengths: list[int]) -> torch.Tensor:
    """[rows, NEW_TOKENS, vocab] fp32: logits after each prompt, one ragged chunk, and after each
    token but the last behind it, by decodes."""
    player = Player(model, [len(ids) for ids in rows], block_size=16)
    chunks = {row: rows[row][:length] for row, length in enumerate(lengths)}
    ends = torch.tensor(lengths).cumsum(0) - 1
    logits = [player.step(chunks, ends.tolist()).float()]
    for at in range(NEW_TOKENS - 1):
        chunks = {row: [rows[row][length + at]] for row, length in enumerate(lengths)}
        logits.append(player.step(chunks).float())
    return torch.stack(logits, dim=1)


@torch.no_grad()
def test_bf16_errs_no_more_than_the_oracle_does_by_a_fifth_and_agrees_where_that_leaves_no_doubt(
    folder: Path, oracle: Llama, prompts: list[list[int]], tokens: list[list[int]]
) -> None:
    lengths = [len(prompt) for prompt in prompts]
    rows = [prompt + after for prompt, after in zip(prompts, tokens, strict=True)]
    exact = teacher_forced(oracle, rows, lengths)
    rounded = teacher_forced(
        load_llama(folder, torch.bfloat16, "cuda", face="reference"), rows, lengths
    )
    ours = teacher_forced(load_llama(folder, torch.bfloat16, "cuda"), rows, lengths)
    error, our_error = (rounded - exact).abs(), (ours - exact).abs()
    top = exact.topk(2).values
    sure = top[..., 0] - top[..., 1] > 2 * error.amax(-1)
    print(
        f"{sure.float().mean():.1%} sure; error max {our_error.max():.3f} / {error.max():.3f}, "
        f"mean {our_error.mean():.4f} / {error.mean():.4f}"
    )
    assert sure.float().mean() > 0.3
    assert torch.equal(ours.argmax(-1)[sure], exact.argmax(-1)[sure])
    assert our_error.max() <= 1.2 * error.max()
    assert our_error.mean() <= 1.2 * error.mean()
