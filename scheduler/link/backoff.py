"""How long to wait between tries to reach a worker."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Seconds: doubles from `first` to `most`. Each delay is drawn from the upper half of its
    bound, so that schedulers that lost one worker together do not come back together. `most` is
    what a worker that is ready may have to wait, and every open stream with it."""

    first: float = 0.05
    most: float = 0.25
    _bound: float = 0.0

    def reset(self) -> None:
        self._bound = 0.0

    def next_delay(self) -> float:
        self._bound = min(self._bound * 2 or self.first, self.most)
        return self._bound * random.uniform(0.5, 1.0)
