"""Log-probabilities as a person reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from nanoserve.cli.terminal import harmless
from nanoserve.output import Chunk, TokenLogprobs

_TEXT_WIDTH = 18


class LogprobTable:
    """A line for each token as it comes. The text is that of its message, so that it stands at
    the first of several tokens that come together, and at the last of those of one character."""

    def __init__(self) -> None:
        self._began = False

    def lines(self, chunk: Chunk) -> str:
        """Those of a message's tokens, the heading before the first; each ends with a newline.
        Raises ValueError for tokens without log-probabilities."""
        if len(chunk.logprobs) != len(chunk.token_ids):
            raise ValueError("the server sends no log-probabilities: leave out --top-logprobs")
        return "".join(line.rstrip() + "\n" for line in self._lines(chunk))

    def _lines(self, chunk: Chunk) -> Iterator[str]:
        if chunk.logprobs and not self._began:
            self._began = True
            yield _heading(len(chunk.logprobs[0].top))
        text = _quoted(chunk.text)
        if len(text) > _TEXT_WIDTH or (text and not chunk.token_ids):
            yield text
            text = ""
        for token_id, its in zip(chunk.token_ids, chunk.logprobs, strict=True):
            yield f"{text:<{_TEXT_WIDTH}}{_figures(token_id, its)}"
            text = ""


def _heading(top: int) -> str:
    own = f"{'text':<{_TEXT_WIDTH}}{'token':>8}{'logprob':>9}{'%':>7}"
    return own + ("   most likely tokens and their logprobs" if top else "")


def _figures(token_id: int, its: TokenLogprobs) -> str:
    own = f"{token_id:>8}{its.logprob:z9.3f}{100 * math.exp(its.logprob):7.1f}"
    return own + "".join(f"{one.token_id:>9}{one.logprob:z9.3f}" for one in its.top)


def _quoted(text: str) -> str:
    """In quotation marks, on one line; nothing of nothing."""
    return harmless(json.dumps(text, ensure_ascii=False)) if text else ""
