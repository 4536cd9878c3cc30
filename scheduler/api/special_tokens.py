"""Which tokens are special. No single source lists them all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tokenizers import AddedToken, Tokenizer

from scheduler.api.model_folder import ModelFolder

_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def special_token_names(folder: ModelFolder) -> dict[str, str | list[str]]:
    """Role to token text ("bos_token" to "<s>"), as a chat template knows them.

    tokenizer_config.json wins over special_tokens_map.json.
    """
    names: dict[str, str | list[str]] = {}
    for source in (folder.special_tokens_map, folder.tokenizer_config):
        for role in _ROLES:
            text = _text(source.get(role))
            if text:
                names[role] = text
        for role in _LISTS:
            texts = list(_texts(source.get(role)))
            if texts:
                names[role] = texts
    return names


def register_special_tokens(tokenizer: Tokenizer, folder: ModelFolder) -> frozenset[int]:
    """The ids of all special tokens of the model.

    A token is special if tokenizer.json or tokenizer_config.json flags it so, if it
    has a role, or if it ends an output. One that tokenizer.json does not list among
    its added tokens is added, so that it is found in text; one that has no id is
    left out, since the model has no embedding for it.
    """
    ids = set(folder.end_ids)
    known = tokenizer.get_added_tokens_decoder()
    ids.update(token_id for token_id, token in known.items() if token.special)
    for token in _configured(folder):
        token_id = tokenizer.token_to_id(token.content)
        if token_id is None:
            continue
        ids.add(token_id)
        if token_id not in known:
            tokenizer.add_special_tokens([token])
    return frozenset(ids)


def _configured(folder: ModelFolder) -> Iterator[AddedToken]:
    for entry in (folder.tokenizer_config.get("added_tokens_decoder") or {}).values():
        if isinstance(entry, dict) and entry.get("special") and entry.get("content"):
            yield AddedToken(
                entry["content"],
                single_word=bool(entry.get("single_word")),
                lstrip=bool(entry.get("lstrip")),
                rstrip=bool(entry.get("rstrip")),
                normalized=bool(entry.get("normalized")),
                special=True,
            )
    for value in special_token_names(folder).values():
        for text in [value] if isinstance(value, str) else value:
            yield AddedToken(text, normalized=False, special=True)


def _text(value: Any) -> str | None:
    """A token is written as its text, or as an object with its text in `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _texts(value: Any) -> Iterator[str]:
    entries = value.values() if isinstance(value, dict) else value or ()
    for entry in entries:
        text = _text(entry)
        if text:
            yield text
