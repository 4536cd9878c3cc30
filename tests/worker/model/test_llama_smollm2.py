"""The forward against transformers on the default model, on the CPU."""

from pathlib import Path

import pytest
import torch
import transformers

from deploy.model.fetch import fetch
from tests.player import Player, greedy, load_llama
from tests.worker.model.smollm2_prompts import twenty_prompts
from worker.model.llama import Llama

# The first use gets and converts the model, and cores are shared.
pytestmark = pytest.mark.timeout(600)

NEW_TOKENS = 64


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch()


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    return twenty_prompts(folder)


def reference(folder: Path, dtype: torch.dtype) -> transformers.LlamaForCausalLM:
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def theirs(folder: Path) -> transformers.LlamaForCausalLM:
    """transformers' own, in fp32."""
    return reference(folder, torch.float32)


@pytest.fixture(scope="module")
def ours(folder: Path) -> Llama:
    """In fp32."""
    return load_llama(folder)


def reference_greedy(model: transformers.LlamaForCausalLM, prompts: list[list[int]]) -> list:
    """Greedy tokens of all prompts as one batch, padded on the left."""
    width = max(len(ids) for ids in prompts)
    ids = torch.zeros((len(prompts), width), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    tokens = model.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0
    )
    return tokens[:, width:].tolist()


@torch.no_grad()
def test_64_greedy_tokens_of_20_prompts_equal_transformers_in_fp32(
    theirs: transformers.LlamaForCausalLM, ours: Llama, prompts: list[list[int]]
) -> None:
    assert len(prompts) == 20
    expected = reference_greedy(theirs, prompts)
    assert all(len(tokens) == NEW_TOKENS for tokens in expected)
    assert greedy(ours, prompts, NEW_TOKENS, block_size=16) == expected


def logits_of(model: transformers.LlamaForCausalLM, prompts: list[list[int]]) -> torch.Tensor:
    return torch.cat([model(torch.tensor([ids])).logits[0] for ids in prompts])


def played(model: Llama, prompts: list[list[int]]) -> torch.Tensor:
    """Our logits of every position of each prompt: a chunk, then three decodes."""
    player = Player(model, [len(ids) for ids in prompts], block_size=16)
    rows: list[list[torch.Tensor]] = [[] for _ in prompts]
    for first, last in ((0, -3), (-3, -2), (-2, -1), (-1, None)):
        chunks = {row: ids[first:last] for row, ids in enumerate(prompts)}
        order = Player.order(chunks)
        logits = player.step(chunks).split([len(chunks[row]) for row in order])
        for row, part in zip(order, logits, strict=True):
            rows[row].append(part.float())
    return torch.cat([part for parts in rows for part in parts])


@torch.no_grad()
def test_fp32_logits_of_20_prompts_equal_transformers_within_1e_4(
    folder: Path,
    theirs: transformers.LlamaForCausalLM,
    ours: Llama,
    prompts: list[list[int]],
) -> None:
    exact = logits_of(reference(folder, torch.float64), prompts)
    their, our = logits_of(theirs, prompts), played(ours, prompts)
    assert our.shape == (sum(len(ids) for ids in prompts), theirs.config.vocab_size)
    # Other processors round otherwise: where transformers itself lies farther than 1e-4 from fp64,
    # ours may be as far.
    own = (their - exact).abs().max().item()
    limit = max(1e-4, own)
    farthest = (our - their).abs().max().item(), (our - exact).abs().max().item(), own
    print("from transformers {:.2e}, from fp64 {:.2e}; transformers {:.2e}".format(*farthest))
    assert farthest[0] <= limit
    assert farthest[1] <= limit


@torch.no_grad()
def test_bf16_errors_are_at_most_those_of_transformers_by_a_fifth(
    folder: Path, theirs: transformers.LlamaForCausalLM, prompts: list[list[int]]
) -> None:
    some = [*prompts[:2], *prompts[-2:]]
    exact = logits_of(theirs, some)
    their = (logits_of(reference(folder, torch.bfloat16), some).float() - exact).abs()
    our = (played(load_llama(folder, torch.bfloat16), some) - exact).abs()
    print(f"max {our.max():.3f} / {their.max():.3f}, mean {our.mean():.4f} / {their.mean():.4f}")
    assert their.mean() > 1e-3  # the comparison is between roundings, not between zeros
    assert our.max() <= 1.2 * their.max()
    assert our.mean() <= 1.2 * their.mean()
