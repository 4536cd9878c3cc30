"""What the run tells its generator processes, and what they answer. Moments are
time.monotonic(), which all processes of a machine share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deploy.loadtest.plan import LoadPlan
from deploy.loadtest.timeline import Timeline

# A conversation is one request unless the plan has turns. Requests are numbered through:
# conversation c has requests c * turns to c * turns + turns - 1.


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to a process."""

    plan: LoadPlan
    vocab_size: int
    run_id: str  # begins every request id, so that two runs do not collide
    origin: float  # the run's start


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Begin these conversations at these times."""

    stage: int
    conversations: NDArray[np.int64]
    times: NDArray[np.float64]  # seconds from the order's start, rising

    def share(self, part: int, parts: int) -> Scheduled:
        """Every `parts`-th, so that all processes are busy all the time."""
        return Scheduled(self.stage, self.conversations[part::parts], self.times[part::parts])


@dataclass(frozen=True, slots=True)
class Looped:
    """Keep `users` busy with these conversations, in order."""

    stage: int
    users: int
    conversations: NDArray[np.int64]
    seconds: float  # until no more are sent; inf: until there are no more

    def share(self, part: int, parts: int) -> Looped:
        """Some of the users, with as many conversations for each as the others have."""
        first, end = self.users * part // parts, self.users * (part + 1) // parts
        user = np.arange(len(self.conversations)) % self.users
        mine = self.conversations[(first <= user) & (user < end)]
        return Looped(self.stage, end - first, mine, self.seconds)


Order = Scheduled | Looped


@dataclass(frozen=True, slots=True)
class Start:
    """Begin the order that was prepared."""

    at: float
    measured_from: float  # what is planned earlier is warm-up


class Stop:
    """Send no more and give up what runs."""


class Ready:
    """The order is prepared (after Setup: the server is connected)."""


class Counts(NamedTuple):
    """Requests of an order so far."""

    sent: int = 0
    ended: int = 0
    failed: int = 0  # of those that ended
    tokens: int = 0  # of those that ended


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """All of the order's requests, ended one way or the other."""

    timelines: list[Timeline]


@dataclass(frozen=True, slots=True)
class Broken:
    """The process cannot go on."""

    reason: str
