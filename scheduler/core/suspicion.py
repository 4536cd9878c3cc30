"""What losses of the worker say of one request: when it is suspected, and when blamed.

A request that crashes the worker does so again whenever it gets as far. A worker may also be
killed, stopped or replaced from outside, which says nothing of who was on it, and often nobody can
tell which of the two it was. So:

- A loss concerns the requests that had a step in flight, and no other.
- Two in a row make a suspect, unless it made TOKENS_TO_CLEAR tokens in between. Suspects run alone,
  one by one (scheduler/core/suspects.py), until they have. Chunks of its prompt clear nobody, as
  the crash may come after them, and neither does the one token that a recompute ends with: a
  request that crashes in decode only makes as many each time.
- A suspect that was alone at a loss is blamed at once if the worker said that a step failed
  (worker.proto, Execute), as a kill from outside cannot make it.
- If it ended without a word (out of memory, a fault in native code, hung, or from outside), a
  suspect that was alone is blamed at the fourth such loss in a row that one place of its
  computation explains, or at the sixth, wherever they came. One of a worker that hung counts as
  two: it takes a whole step timeout, and few things from outside make it stand still so long.

So a request that crashes the worker is blamed after 3 losses in a row, one that hangs it after 4,
one that ends it without a word after 6, and any after 8. One that makes TOKENS_TO_CLEAR tokens or
more between crashes is not blamed: all others get on as well, and it ends with its last token.
Losses from outside fail a request only if, after two without those tokens, four in a row meet it
alone at one place, or six anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

LOSSES_TO_SUSPECT = 2
TOKENS_TO_CLEAR = 2
SILENT_LOSSES_AT_ONE_PLACE = 4
SILENT_LOSSES = 6


@dataclass(slots=True)
class Suspicion:
    """Of one request. `tokens`: prompt and output, those known."""

    losses: int = 0  # in a row
    tokens: int = 0  # at the last of them
    # What those count that met it as a suspect, alone, without a word: 1, or 2 for a hang.
    alone: int = 0
    at_place: int = 0  # likewise the last of these, in a row, that one place explains
    place: range = range(0)  # where that may be: positions that were in flight at all of them

    def is_cleared_by(self, tokens: int) -> bool:
        return tokens >= self.tokens + TOKENS_TO_CLEAR

    def is_suspect(self, tokens: int) -> bool:
        return self.losses >= LOSSES_TO_SUSPECT and not self.is_cleared_by(tokens)

    def lost(self, tokens: int) -> None:
        """A loss that concerns it."""
        if self.is_cleared_by(tokens):
            self.losses = self.alone = self.at_place = 0
        self.losses += 1
        self.tokens = tokens

    def lost_alone(self, in_flight: range, *, hung: bool) -> None:
        """That loss came without a word while these positions of the suspect alone were."""
        weight = 2 if hung else 1
        self.alone += weight
        both = range(max(self.place.start, in_flight.start), min(self.place.stop, in_flight.stop))
        again = self.at_place > 0 and len(both) > 0
        self.at_place = self.at_place + weight if again else weight
        self.place = both if again else in_flight

    @property
    def is_proven(self) -> bool:
        """By losses without a word."""
        return self.at_place >= SILENT_LOSSES_AT_ONE_PLACE or self.alone >= SILENT_LOSSES
