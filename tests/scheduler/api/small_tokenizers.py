"""Small tokenizers of every kind, in model folders as Hugging Face writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = ["the capital of France is Paris", "user assistant system text", "a cat sat on the mat"]


def byte_fallback() -> Tokenizer:
    """Like Llama 2's: pieces with U+2581 for a space, single bytes for all else, and a
    post-processor that adds <s>."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    merges = [("▁", "P"), ("▁P", "a"), ("r", "i"), ("▁Pa", "ri"), ("▁Pari", "s")]
    pieces = ["▁", "<", ">", "/", ":", "\n", "\ufffd", *map(chr, range(97, 123)), "P", "F"]
    for piece in [*pieces, *(left + right for left, right in merges)]:
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def byte_level() -> Tokenizer:
    """Like Llama 3's: bytes, special tokens outside the model's vocabulary, and a
    post-processor that adds <|begin|>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}{1,3}|\s+|[^\s\p{L}\p{N}]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>", "<|head|>", "<|tail|>"])
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A",
        pair="<|begin|> $A $B",
        special_tokens=[("<|begin|>", begin)],
    )
    return tokenizer


def word_piece() -> Tokenizer:
    """A decoder whose text depends on whether a token is the first."""
    words = ["[UNK]", "the", "cat", "##s", "sat", "on", ".", "mat"]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


LLAMA_2_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] | trim + ' [/INST]' }}{% elif m['role'] == 'assistant' %}"
    "{{ ' ' + m['content'] | trim + ' ' + eos_token + bos_token }}{% else %}"
    "{{ raise_exception('Only user and assistant are known, not ' + m['role']) }}"
    "{% endif %}{% endfor %}"
)
LLAMA_3_TEMPLATE = (
    "{% set loop_messages = messages %}\n"
    "{% for message in loop_messages %}\n"
    "    {% set content = '<|head|>' + message['role'] + '<|tail|>\n\n'"
    " + message['content'] | trim + '<|end|>' %}\n"
    "    {% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}\n"
    "    {{- content }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{- '<|head|>assistant<|tail|>\n\n' }}{% endif %}\n"
)


def write_folder(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    template: str | None = None,
    end_ids: int | list[int] = 2,
    tokenizer_config: dict[str, Any] | None = None,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **(tokenizer_config or {})}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": end_ids}))
    return folder
