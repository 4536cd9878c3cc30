"""Keeps message text that looks like a special token from becoming one.

A chat template mixes its own special tokens with text that anyone may have written.
Before the template runs, `guard` puts a mark that nobody can guess before every
character of a message at which a special token could begin, also one that only the
text around it completes. In the rendered text a special token without a mark is the
template's own. `reveal` removes the marks and gives those private names, which
`renamed` teaches to a second tokenizer. There the usual spelling is ordinary text,
and one call still encodes the whole conversation, so that splitting, normalizing and
merging at the borders are what they always are.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Iterable

from tokenizers import Tokenizer


class SpecialText:
    def __init__(self, special: Iterable[str]) -> None:
        """`special`: the texts of all special tokens."""
        secret = f"{secrets.randbelow(10**20):020}"
        self._mark = f"\ue000{secret}\ue001"
        self._special = sorted(filter(None, special), key=len, reverse=True)
        self._names = {text: f"\ue002{secret}.{i}\ue003" for i, text in enumerate(self._special)}
        self._longest = max(map(len, self._special), default=0)
        inside = [(text, i) for text in self._special for i in range(1, len(text))]
        self._beginnings = {text[:i] for text, i in inside}
        self._endings = {text[i:] for text, i in inside}
        alternatives = "|".join(map(re.escape, self._special))
        # A marked character is taken with its mark, so that no token begins at it.
        self._pattern = re.compile(f"{self._mark}(.)|({alternatives})", re.DOTALL)

    def guard(self, text: str) -> str:
        """`text` with marks; the same object if nothing in it needs one."""
        starts = self._starts(text)
        if not starts:
            return text
        cuts = [0, *sorted(starts), len(text)]
        return self._mark.join(text[a:b] for a, b in itertools.pairwise(cuts))

    def reveal(self, rendered: str) -> str:
        if not self._special:
            return rendered
        return self._pattern.sub(lambda match: match[1] or self._names[match[2]], rendered)

    def renamed(self, tokenizer: Tokenizer) -> Tokenizer:
        """A tokenizer that knows the special tokens by their private names only."""
        definition = json.loads(tokenizer.to_str())
        for token in definition["added_tokens"]:
            token["content"] = self._names.get(token["content"], token["content"])
        model = definition["model"]
        if isinstance(model["vocab"], dict):
            model["vocab"] = {self._names.get(k, k): v for k, v in model["vocab"].items()}
        else:
            model["vocab"] = [[self._names.get(k, k), v] for k, v in model["vocab"]]
        if isinstance(model.get("unk_token"), str):
            model["unk_token"] = self._names.get(model["unk_token"], model["unk_token"])
        if "merges" in model:  # one that makes a special token has no result any more
            model["merges"] = [pair for pair in model["merges"] if _merged(pair) not in self._names]
        definition["post_processor"] = None  # encodes what the template wrote, adds nothing
        return Tokenizer.from_str(json.dumps(definition))

    def _starts(self, text: str) -> set[int]:
        """Where a special token begins, or might with text before or after it. Templates
        trim, so the text's ends are those of its trimmed form too."""
        starts: set[int] = set()
        for special in self._special:
            # str.find, since it is fast and lets other threads run in between.
            at = text.find(special)
            while at >= 0:
                starts.add(at)
                at = text.find(special, at + 1)
        trimmed_start = len(text) - len(text.lstrip())
        trimmed_end = len(text.rstrip())
        for length in range(1, self._longest):
            for start in (0, trimmed_start):
                if text[start : start + length] in self._endings:
                    starts.add(start)
            for end in (trimmed_end, len(text)):
                if text[max(0, end - length) : end] in self._beginnings:
                    starts.add(max(0, end - length))
        return starts


def _merged(pair: str | list[str]) -> str:
    """tokenizer.json writes a merge as two texts, older ones with a space between."""
    return "".join(pair.split(" ") if isinstance(pair, str) else pair)
