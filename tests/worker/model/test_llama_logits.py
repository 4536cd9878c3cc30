"""The forward against transformers, same weights, fp32, for every kind of config."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from tests.player import Player, greedy, load_llama
from tests.tiny_llama import ABSENT, tiny_llama

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KINDS: dict[str, dict[str, object]] = {
    "llama 1: heads without K/V groups, no key for them": {
        "num_key_value_heads": ABSENT,
        "head_dim": ABSENT,
        "rope_theta": ABSENT,
        "rms_norm_eps": 1e-6,
    },
    "llama 2: null K/V heads, null head_dim": {"num_key_value_heads": None, "head_dim": None},
    "llama 3": {"rope_theta": 500000.0, "num_key_value_heads": 1},
    "llama 3.1: llama3 rope": {"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE},
    "llama 3.2: tied head": {
        "rope_theta": 500000.0,
        "rope_scaling": LLAMA3_ROPE | {"factor": 32.0},
        "tie_word_embeddings": True,
    },
    "rope_parameters with theta inside": {
        "rope_theta": ABSENT,
        "rope_parameters": LLAMA3_ROPE | {"rope_theta": 20000.0},
    },
    "rope_parameters default": {
        "rope_theta": ABSENT,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    },
    "linear rope, older key for the type": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic rope up to the original context": {
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
        "max_position_embeddings": 104,
    },
    "head_dim that is not hidden / heads": {"head_dim": 32},
    "as many K/V heads as heads": {"num_key_value_heads": 4},
    "biases on all seven projections": {"attention_bias": True, "mlp_bias": True},
    "attention bias only": {"attention_bias": True},
    "odd sizes": {
        "hidden_size": 72,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 24,
        "intermediate_size": 100,
        "vocab_size": 301,
    },
}
LENGTHS = (104, 61)
CHUNKS = ((40, 1), (1, 17), (17, 1), (1, 1), (1, 1), (33, 30), (1, 10), (10, 0))


@pytest.fixture(params=KINDS, ids=lambda kind: kind.split(":")[0].replace(" ", "-"))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "model", seed=1, **KINDS[request.param])


def reference(folder: Path) -> transformers.LlamaForCausalLM:
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def test_logits_at_every_position_equal_transformers_in_chunks_and_decodes(folder: Path) -> None:
    llama, other = load_llama(folder), reference(folder)
    generator = torch.Generator().manual_seed(5)
    rows = [
        torch.randint(0, llama.config.vocab_size, (length,), generator=generator)
        for length in LENGTHS
    ]
    expected = [other(ids[None]).logits[0] for ids in rows]
    player = Player(llama, LENGTHS, block_size=8)
    for counts in CHUNKS:
        starts = list(player.lengths)
        chunks = {
            row: ids[starts[row] : starts[row] + count].tolist()
            for row, (ids, count) in enumerate(zip(rows, counts, strict=True))
            if count
        }
        logits = player.step(chunks)
        wanted = [
            expected[row][starts[row] : starts[row] + len(chunks[row])]
            for row in Player.order(chunks)
        ]
        torch.testing.assert_close(logits, torch.cat(wanted), atol=1e-4, rtol=0)
    assert player.lengths == list(LENGTHS)


@torch.no_grad()
def test_64_greedy_tokens_equal_transformers(folder: Path) -> None:
    llama, other = load_llama(folder), reference(folder)
    prompts = ([1, 2, 3, 4, 5, 6, 7], [200, 100, 50], [99])
    other.generation_config.eos_token_id = None
    expected = [
        other.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=64, pad_token_id=0)[
            0, len(ids) :
        ].tolist()
        for ids in prompts
    ]
    assert greedy(llama, prompts, 64) == expected
