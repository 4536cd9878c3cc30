"""Stop strings, found while the text comes in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class StopStrings:
    """An automaton (Aho-Corasick) that finds the first of some strings in a stream.

    The first is the one whose last character comes first, the longest if several end
    there: this depends on the text alone and not on how it is cut into pieces. Each
    character costs constant time however many strings there are.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        # Per state: where a character leads, the state of the longest proper suffix,
        # the length of the text that led here, the longest string that ends here.
        self._next: list[dict[str, int]] = [{}]
        self._suffix = [0]
        self._depth = [0]
        self._found: list[str | None] = [None]
        self._state = 0
        for string in strings:
            self._add(string)
        self._link_suffixes()
        self._first = frozenset(self._next[0])

    @property
    def held(self) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        return self._depth[self._state]

    def push(self, text: str) -> tuple[str, int] | None:
        """The stop string that ends in `text`, and after how many of its characters;
        None if none does yet."""
        state, following, suffix = self._state, self._next, self._suffix
        if not state and self._first.isdisjoint(text):
            return None
        for position, character in enumerate(text, 1):
            while character not in following[state] and state:
                state = suffix[state]
            state = following[state].get(character, 0)
            found = self._found[state]
            if found is not None:
                return found, position
        self._state = state
        return None

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            known = self._next[state].get(character)
            if known is None:
                known = self._next[state][character] = len(self._next)
                self._next.append({})
                self._suffix.append(0)
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
            state = known
        self._found[state] = string

    def _link_suffixes(self) -> None:
        """Breadth first, so that a state's suffix is linked before the state."""
        pending = deque(self._next[0].values())
        while pending:
            state = pending.popleft()
            for character, child in self._next[state].items():
                suffix = self._suffix[state]
                while character not in self._next[suffix] and suffix:
                    suffix = self._suffix[suffix]
                self._suffix[child] = self._next[suffix].get(character, 0)
                if self._found[child] is None:
                    self._found[child] = self._found[self._suffix[child]]
                pending.append(child)
