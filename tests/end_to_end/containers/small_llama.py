"""The model of the deployment that is tested: a small random Llama in fp32."""

from __future__ import annotations

from pathlib import Path

from deploy.model.random_llama import SHAPES, write_random_llama

# Deep, so that a step takes some milliseconds and a stream is still open when a fault comes.
CONFIG = SHAPES["tiny"] | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 12,
    "head_dim": 32,
    "max_position_embeddings": 2048,
}


def write_small_llama(folder: Path) -> None:
    write_random_llama(folder, CONFIG, seed=6)


def greedy_tokens(folder: Path, prompt: list[int], count: int) -> list[int]:
    """What transformers continues `prompt` with."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    flags = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **flags)
    return found[0, len(prompt) :].tolist()
