"""The text of one output as its client sees it, ended by stop strings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from scheduler.api.detokenizer import Detokenizer, NoText
from scheduler.api.stop_rules import StopStrings
from scheduler.api.tokenizer import Tokenizer


class OutputText:
    """Turns tokens into text, hides special tokens unless asked, and holds back only
    what may be the beginning of a stop string.

    Stop strings are looked for in the text with special tokens. Where those are hidden,
    two detokenizers run side by side, and each character of the searched text knows
    whether it is hidden, so that a match cuts the client's text where it begins.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt_ids: Iterable[int],
        stop: Sequence[str],
        include_special: bool,
    ) -> None:
        self._stops = StopStrings(stop) if stop else None
        self._shown: Detokenizer = NoText()
        self._searched: Detokenizer = self._shown
        self._hidden_length: Callable[[int], int] = lambda _: 0
        if tokenizer is not None:
            self._shown = self._searched = tokenizer.detokenizer(prompt_ids, include_special)
            if stop and not include_special:
                self._searched = tokenizer.detokenizer(prompt_ids, True)
                self._hidden_length = tokenizer.special_length
        self._ready: list[str] = []
        self._held = ""  # shown text that a stop string may still take away
        self._hidden: list[bool] = []  # per character of the searched text held

    def push(self, token_id: int) -> str | None:
        """The stop string that this token completes, if it does; then the text is over."""
        text = self._shown.push(token_id)
        if self._stops is None:
            if text:
                self._ready.append(text)
            return None
        if self._searched is self._shown:
            return self._search(text, text, 0)
        searched = self._searched.push(token_id)
        return self._search(text, searched, self._hidden_length(token_id))

    def finish(self) -> str | None:
        """Ends the text; the stop string that its last characters complete, if they do."""
        found = None
        if self._stops is not None:
            text, searched = self._finish_both()
            found = self._search(text, searched, 0)
        else:
            self._ready.append(self._shown.finish())
        self._ready.append(self._held)
        self._held = ""
        return found

    def take(self) -> str:
        """The text that became certain since the last call."""
        if not self._ready:
            return ""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def _search(self, text: str, searched: str, num_hidden: int) -> str | None:
        """Adds `text`. The last `num_hidden` characters of `searched` are not shown."""
        assert self._stops is not None
        match = self._stops.push(searched)
        if match is None and not self._stops.held:
            self._ready.append(self._held + text)
            self._held = ""
            self._hidden.clear()
            return None
        num_shown = max(0, len(searched) - num_hidden)
        hidden = self._hidden + [False] * num_shown + [True] * (len(searched) - num_shown)
        if match is None:
            begin = len(hidden) - self._stops.held
        else:
            begin = len(hidden) - len(searched) + match[1] - len(match[0])
            # One of the two may still have to give text that the other gave already.
            rest, searched_rest = self._finish_both()
            text += rest
            hidden += [False] * len(searched_rest)
        self._hidden = hidden[begin:]
        held = self._held + text
        certain = max(0, len(held) - self._hidden.count(False))
        if certain:
            self._ready.append(held[:certain])
        self._held = "" if match else held[certain:]
        return match[0] if match else None

    def _finish_both(self) -> tuple[str, str]:
        text = self._shown.finish()
        return text, text if self._searched is self._shown else self._searched.finish()
