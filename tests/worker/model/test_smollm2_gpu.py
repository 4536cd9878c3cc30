"""The default model on a GPU: what training made of weights, through the Triton kernels.

What is exact is the CPU's face in fp32, which is held to the oracle and to transformers.
"""

from pathlib import Path

import pytest
import torch
import transformers

from deploy.model.fetch import fetch
from tests.player import Player, greedy, load_llama
from tests.worker.model.smollm2_prompts import twenty_prompts
from worker.model.llama import Llama

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

DEVICE = "cuda"
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch()


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    return twenty_prompts(folder)


@pytest.fixture(scope="module")
def exact(folder: Path) -> Llama:
    return load_llama(folder)


@pytest.fixture(scope="module")
def tokens(exact: Llama, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy."""
    with torch.no_grad():
        return greedy(exact, prompts, NEW_TOKENS, block_size=16)


@torch.no_grad()
def test_64_greedy_tokens_of_20_prompts_equal_the_cpus_in_fp32(
    folder: Path, prompts: list[list[int]], tokens: list[list[int]]
) -> None:
    assert len({token for row in tokens for token in row}) > 200  # text, not one token for ever
    ours = load_llama(folder, torch.float32, DEVICE)
    assert greedy(ours, prompts, NEW_TOKENS, block_size=16) == tokens


def teacher_forced(model: Llama, rows: list[list[int]], lengths: list[int]) -> torch.Tensor:
    """[rows, NEW_TOKENS, vocab] fp32: logits after each prompt, one ragged chunk, and after each
    token but the last behind it, by decodes."""
    player = Player(model, [len(ids) for ids in rows], block_size=16)
    chunks = {row: rows[row][:length] for row, length in enumerate(lengths)}
    ends = torch.tensor(lengths).cumsum(0) - 1
    logits = [player.step(chunks, ends.tolist()).float().cpu()]
    for at in range(NEW_TOKENS - 1):
        chunks = {row: [rows[row][length + at]] for row, length in enumerate(lengths)}
        logits.append(player.step(chunks).float().cpu())
    return torch.stack(logits, dim=1)


def transformers_bf16(folder: Path, rows: list[list[int]]) -> torch.Tensor:
    """The same of transformers, each row alone."""
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model = model.to(DEVICE).eval()
    kept = {"logits_to_keep": NEW_TOKENS, "use_cache": False}
    parts = [
        model(torch.tensor([ids[:-1]], device=DEVICE), **kept).logits[0].float() for ids in rows
    ]
    return torch.stack(parts).cpu()


@torch.no_grad()
def test_bf16_errs_as_transformers_does_and_agrees_wherever_that_leaves_no_doubt(
    folder: Path, exact: Llama, prompts: list[list[int]], tokens: list[list[int]]
) -> None:
    lengths = [len(prompt) for prompt in prompts]
    rows = [prompt + after for prompt, after in zip(prompts, tokens, strict=True)]
    right = teacher_forced(exact, rows, lengths)
    error = (transformers_bf16(folder, rows) - right).abs()
    ours = teacher_forced(load_llama(folder, torch.bfloat16, DEVICE), rows, lengths)
    our_error = (ours - right).abs()
    top = right.topk(2).values
    sure = top[..., 0] - top[..., 1] > 2 * error.amax(-1)
    print(
        f"{sure.float().mean():.1%} sure; error max {our_error.max():.3f} / {error.max():.3f}, "
        f"mean {our_error.mean():.4f} / {error.mean():.4f}"
    )
    assert sure.float().mean() > 0.3
    assert torch.equal(ours.argmax(-1)[sure], right.argmax(-1)[sure])
    assert our_error.max() <= 1.2 * error.max()
    assert our_error.mean() <= 1.2 * error.mean()
