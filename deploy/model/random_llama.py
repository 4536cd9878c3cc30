"""`python -m deploy.model.random_llama`: a Hugging Face folder of a Llama with random weights.

For tests and for benchmarks of shapes whose real weights are not at hand. Needs torch, safetensors
and tokenizers. The tokenizer is byte-level: the id of a byte is its value; 0xFE and 0xFF, which
never occur in UTF-8, are the begin and end tokens; further ids have no text, or with `words` one
each.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

BEGIN_ID, END_ID = 0xFE, 0xFF

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "bos_token_id": BEGIN_ID,
    "eos_token_id": END_ID,
}


def _llama3_rope(factor: float) -> dict[str, object]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


# config.json of each shape. "1b" is Llama-3.2-1B's, "8b" Llama-3.1-8B's.
SHAPES: dict[str, dict[str, object]] = {
    "tiny": _LLAMA
    | {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    },
    "1b": _LLAMA
    | {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": _llama3_rope(32.0),
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    },
    "8b": _LLAMA
    | {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": _llama3_rope(8.0),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
}


def tensor_shapes(config: dict) -> dict[str, list[int]]:
    """Name and shape of every tensor of a Llama checkpoint with this config.json."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    q, kv = heads * head_dim, (config.get("num_key_value_heads") or heads) * head_dim
    attention = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
    attention["o_proj"] = (hidden, q)
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    groups = [
        ("self_attn", attention, config.get("attention_bias")),
        ("mlp", mlp, config.get("mlp_bias")),
    ]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden]}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}.{norm}.weight"] = [hidden]
        for group, projections, bias in groups:
            for name, (rows, columns) in projections.items():
                shapes[f"{prefix}.{group}.{name}.weight"] = [rows, columns]
                if bias:
                    shapes[f"{prefix}.{group}.{name}.bias"] = [rows]
    shapes["model.norm.weight"] = [hidden]
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = [config["vocab_size"], hidden]
    return shapes


def random_tensors(
    config: dict, seed: int, device: str = "cpu"
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of `config` with random values in its dtype, one at a time.

    The same seed gives the same values on one kind of device. Matrices keep the size of what they
    multiply (standard deviation 1 / sqrt(columns)), norms lie around 1, and biases are small.
    """
    generator = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, str(config.get("dtype") or config.get("torch_dtype") or "float32"))
    for name, shape in tensor_shapes(config).items():
        values = torch.randn(shape, generator=generator, device=device)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * values
        elif name.endswith(".bias"):
            values *= 0.1
        else:
            values /= math.sqrt(shape[1])
        yield name, values.to(dtype)


def write_random_llama(
    folder: Path,
    config: dict,
    seed: int = 0,
    device: str = "cpu",
    shard_bytes: int = 4 << 30,
    words: bool = False,
) -> Path:
    """Writes `folder`: configs, tokenizer and safetensors, sharded when over `shard_bytes`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)
    write_byte_tokenizer(folder, config["vocab_size"] if words else 0)
    write_tensors(folder, random_tensors(config, seed, device), shard_bytes)
    return folder


def write_config(folder: Path, config: dict) -> None:
    """Writes config.json and generation_config.json."""
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id") if key in config}
    (folder / "generation_config.json").write_text(json.dumps(generation) + "\n")


def write_tensors(
    folder: Path, tensors: Iterator[tuple[str, torch.Tensor]], shard_bytes: int
) -> None:
    """Writes model.safetensors, or shards of at most `shard_bytes` (one tensor at least) with
    their index. Holds one shard in memory."""
    shards: list[list[str]] = []
    total = size = 0
    shard: dict[str, torch.Tensor] = {}

    def flush() -> None:
        save_file(shard, folder / f"part-{len(shards)}", metadata={"format": "pt"})
        shards.append(list(shard))
        shard.clear()

    for name, tensor in tensors:
        if shard and size + tensor.nbytes > shard_bytes:
            flush()
            size = 0
        shard[name] = tensor.contiguous()
        size += tensor.nbytes
        total += tensor.nbytes
    flush()
    if len(shards) == 1:
        (folder / "part-0").rename(folder / "model.safetensors")
        return
    index: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"part-{number}").rename(folder / file)
        index |= dict.fromkeys(names, file)
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
    (folder / "model.safetensors.index.json").write_text(text + "\n")


_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_byte_tokenizer(folder: Path, words: int = 0) -> None:
    """Writes tokenizer.json and tokenizer_config.json of the byte-level tokenizer. Ids from 256 up
    to `words` become words, each with a space before it, which no text is encoded to."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    begin, end = "<|begin|>", "<|end|>"
    vocabulary = {_byte_character(value): value for value in range(BEGIN_ID)}
    vocabulary |= {begin: BEGIN_ID, end: END_ID}
    space = _byte_character(ord(" "))
    vocabulary |= {space + _word(i): i for i in range(END_ID + 1, words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (begin, end)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "chat_template": _CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _word(number: int) -> str:
    """Its digits to the base 26, as letters."""
    letters = ""
    while number:
        number, digit = divmod(number, 26)
        letters = chr(ord("a") + digit) + letters
    return letters


def _byte_character(value: int) -> str:
    """The character that byte-level tokenizers write for a byte: itself if it prints, else one
    from U+0100 on, counted over the bytes that do not."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if value in plain:
        return chr(value)
    return chr(0x100 + [byte for byte in range(0x100) if byte not in plain].index(value))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.model.random_llama", description=__doc__
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--words", action="store_true", help="give all ids a text")
    text = "where the values are drawn (default: cpu); auto: cuda if there is one"
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu", help=text)
    given = parser.parse_args(arguments)
    if given.device == "auto":
        given.device = "cuda" if torch.cuda.is_available() else "cpu"
    config = SHAPES[given.shape]
    print(write_random_llama(given.out, config, given.seed, given.device, words=given.words))
    return 0


if __name__ == "__main__":
    sys.exit(main())
