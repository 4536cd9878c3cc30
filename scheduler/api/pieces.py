"""What a tokenizer's decoder makes of each token, and the detokenizer that fits it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer

from scheduler.api.detokenizer import (
    ByteLevelDetokenizer,
    Detokenizer,
    PieceDetokenizer,
    WindowDetokenizer,
)

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def detokenizer_maker(
    tokenizer: Tokenizer, hidden: frozenset[int]
) -> Callable[[Iterable[int]], Detokenizer]:
    """A function from prompt ids to a fresh detokenizer of an output after them.

    Tokens in `hidden`, and ids without a token, have no text.
    """

    def token(token_id: int) -> str | None:
        return None if token_id in hidden else tokenizer.id_to_token(token_id)

    steps = _decoder_steps(tokenizer)
    if [step["type"] for step in steps] == ["ByteLevel"]:
        # __getitem__ of a dict that fills itself is the fastest map from id to piece.
        bytes_of = _Table(lambda token_id: _byte_level(token(token_id))).__getitem__
        return lambda _: ByteLevelDetokenizer(bytes_of)
    rules = _piece_rules(steps)
    if rules is None:
        return lambda _: WindowDetokenizer(lambda ids: _decode(tokenizer, hidden, ids))
    piece_of = _Table(lambda token_id: rules.piece(token(token_id))).__getitem__
    return lambda prompt_ids: PieceDetokenizer(
        piece_of, rules.strip_character, rules.strip, prompt_ids
    )


class _Table(dict[int, Any]):
    """A map that computes a missing entry once."""

    def __init__(self, compute: Callable[[int], Any]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, token_id: int) -> Any:
        value = self[token_id] = self._compute(token_id)
        return value


@dataclass(frozen=True)
class _PieceRules:
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip_character: str = " "
    strip: int = 0

    def piece(self, token: str | None) -> str | int | None:
        if token is None:
            return None
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        byte = _BYTE.fullmatch(token) if self.byte_fallback else None
        return int(byte[1], 16) if byte else token


def _piece_rules(steps: list[dict[str, Any]]) -> _PieceRules | None:
    """Rules for Replace*, ByteFallback?, (Fuse, Strip?)?, the decoders of tokenizers that
    come from SentencePiece; None for any other."""
    replacements: list[tuple[str, str]] = []
    remaining = list(steps)
    while remaining and remaining[0]["type"] == "Replace":
        step = remaining.pop(0)
        pattern = step["pattern"].get("String")
        if not pattern:
            return None
        replacements.append((pattern, step["content"]))
    kinds = [step["type"] for step in remaining]
    byte_fallback = kinds[:1] == ["ByteFallback"]
    strips = kinds[byte_fallback:] == ["Fuse", "Strip"]
    known = strips or kinds[byte_fallback:] in (["Fuse"], [])
    if not (replacements or byte_fallback) or not known or (strips and remaining[-1]["stop"]):
        return None
    rules = _PieceRules(tuple(replacements), byte_fallback)
    if strips:
        strip = remaining[-1]
        rules = replace(rules, strip_character=strip["content"], strip=strip["start"])
    return rules


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.decoder is None:
        return []
    return _flat(json.loads(tokenizer.decoder.__getstate__()))


def _flat(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for child in step["decoders"] for inner in _flat(child)]


def _byte_level(token: str | None) -> bytes:
    """A token of a byte-level vocabulary writes each byte as one printable character; one
    that is not all such characters (an added token) stands for itself."""
    if token is None:
        return b""
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: printable Latin-1 is itself; the rest are U+0100 onwards, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_OF_CHARACTER = _byte_alphabet()


def _decode(tokenizer: Tokenizer, hidden: frozenset[int], ids: list[int]) -> str:
    shown = [token_id for token_id in ids if token_id not in hidden]
    return tokenizer.decode(shown, skip_special_tokens=False)
