"""The forward on a GPU in bf16, at the shape of Llama-3.2-1B, against transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from deploy.model.random_llama import (
    SHAPES,
    random_tensors,
    write_byte_tokenizer,
    write_config,
    write_tensors,
)
from tests.player import Player, load_llama

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

LENGTHS = (1, 5, 17, 40, 64, 100, 129, 200)
POSITIONS = 128


def decisive_tensors(config: dict, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Random weights whose logits have clear winners, so that bf16 rounding seldom moves one.

    The embedding's rows (the head's too: they are tied) differ in size by a log-normal factor and
    come in pairs of opposite sign, which leaves the top few rivals. They are small, so that what
    the layers add decides, and the final norm brings logits back to a usual size.
    """
    for name, tensor in random_tensors(config, seed, "cuda"):
        if name == "model.embed_tokens.weight":
            generator = torch.Generator("cuda").manual_seed(seed + 1)
            sizes = torch.randn((tensor.shape[0], 1), generator=generator, device="cuda").exp()
            tensor = tensor * (0.03 * sizes).to(tensor.dtype)
            tensor[1::2] = -tensor[0::2]
        elif name == "model.norm.weight":
            tensor = tensor * 6
        yield name, tensor


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama-1b")
    write_config(folder, SHAPES["1b"])
    write_byte_tokenizer(folder)
    write_tensors(folder, decisive_tensors(SHAPES["1b"], 0), shard_bytes=1 << 30)
    return folder


def reference(folder: Path, dtype: torch.dtype) -> transformers.LlamaForCausalLM:
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=dtype).cuda().eval()
    model.generation_config.eos_token_id = None
    return model


def continuations(model: transformers.LlamaForCausalLM, prompts: list[list[int]]) -> list:
    """Each prompt with POSITIONS greedy tokens of transformers after it. None occurs twice, since
    random weights would say one token for ever."""
    width = max(LENGTHS)
    ids = torch.zeros((len(prompts), width), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    tokens = model.generate(
        ids.cuda(),
        attention_mask=mask.cuda(),
        do_sample=False,
        no_repeat_ngram_size=1,
        max_new_tokens=POSITIONS,
        pad_token_id=0,
    )
    return [
        prompt + row[width:].tolist() for prompt, row in zip(prompts, tokens.cpu(), strict=True)
    ]


def last_logits(model: transformers.LlamaForCausalLM, rows: list[list[int]]) -> torch.Tensor:
    """[rows, POSITIONS, vocab] fp32: what transformers makes of each row alone, fed with the
    tokens of `continuations`."""
    return torch.stack(
        [
            model(torch.tensor([ids[:-1]]).cuda(), logits_to_keep=POSITIONS, use_cache=False)
            .logits[0]
            .float()
            for ids in rows
        ]
    )


def our_logits(folder: Path, rows: list[list[int]]) -> torch.Tensor:
    """The same, each prompt as one ragged chunk and then the others by decodes."""
    llama = load_llama(folder, torch.bfloat16, "cuda", max_model_len=512)
    player = Player(llama, [len(ids) for ids in rows], block_size=16)
    chunks = {
        row: ids[:length] for row, (ids, length) in enumerate(zip(rows, LENGTHS, strict=True))
    }
    ends = torch.tensor(LENGTHS).cumsum(0) - 1
    logits = [player.step(chunks, ends.tolist()).float()]
    for position in range(POSITIONS - 1):
        logits.append(
            player.step(
                {
                    row: [ids[length + position]]
                    for row, (ids, length) in enumerate(zip(rows, LENGTHS, strict=True))
                }
            ).float()
        )
    return torch.stack(logits, dim=1)


@torch.no_grad()
def test_argmax_equals_transformers_wherever_its_own_bf16_would_not_move_it(folder: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, 128000, (n,), generator=generator).tolist() for n in LENGTHS]
    exact_model = reference(folder, torch.float32)
    rows = continuations(exact_model, prompts)
    exact = last_logits(exact_model, rows)
    del exact_model
    rounded = last_logits(reference(folder, torch.bfloat16), rows)
    error = (rounded - exact).abs().amax(-1)
    top = exact.topk(2).values
    qualifies = top[..., 0] - top[..., 1] > 2 * error
    ours = our_logits(folder, rows)
    winners = exact.argmax(-1)
    our_error = (ours - exact).abs()
    print(
        f"{qualifies.float().mean():.1%} qualify, {winners.unique().numel()} different winners; "
        f"error max {our_error.max():.3f} / {error.max():.3f}, "
        f"mean {our_error.mean():.5f} / {(rounded - exact).abs().mean():.5f}"
    )
    assert qualifies.shape == (8, POSITIONS)
    assert qualifies.float().mean() >= 0.8
    assert winners.unique().numel() >= 30  # a model that says one thing tests nothing
    assert torch.equal(ours.argmax(-1)[qualifies], winners[qualifies])
