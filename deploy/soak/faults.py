"""What goes wrong, and when: a schedule that a seed makes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    weight: float
    ends: str = ""  # the process that may end of it
    shortest: float = 0.0  # seconds, of those that last
    longest: float = 0.0


KINDS = {
    "kill": Kind(4, "worker"),  # kill -9 of the worker
    "replace": Kind(2, "worker"),  # SIGTERM of the worker, and another one on its address
    "pause": Kind(2, "", 0.3, 1.0),  # SIGSTOP of the worker, shorter than the step timeout
    # SIGSTOP of the worker, longer than the step timeout, which is the caller's.
    "hang": Kind(1, "worker", 0.0, 2.0),
    "cut": Kind(3),  # the link's connections are reset
    "partition": Kind(2, "", 0.5, 4.0),  # the link's bytes stand still
    "scheduler-kill": Kind(2, "scheduler"),  # kill -9 of the scheduler
    "scheduler-stop": Kind(1, "scheduler"),  # SIGTERM of the scheduler, which drains
    # SIGSTOP of the scheduler, which goes on once another one has the worker.
    "scheduler-return": Kind(1, "scheduler"),
}

# From this length on, in seconds, the last process of each server lives long enough for its
# memory to be judged: none ends after this share of the time.
LONG = 1500.0
_LAST_END = {"scheduler": 1 / 3, "worker": 1 / 2}
_LAST_FAULT = 0.9


@dataclass(frozen=True, slots=True)
class Fault:
    at: float  # seconds from the start of the load
    kind: str
    seconds: float  # how long it lasts, for those that last


def last_end(server: str, seconds: float) -> float:
    """Until when a soak of so many seconds may make this server end, seconds from its start."""
    return (_LAST_END[server] if seconds >= LONG else _LAST_FAULT) * seconds


def schedule(
    seed: int, seconds: float, every: float, hang: float = 6.0, kinds: Sequence[str] = tuple(KINDS)
) -> list[Fault]:
    """Faults of these kinds at exponential distances of mean `every` seconds; none in the last
    tenth, in which the load ends. A hang lasts `hang` seconds or little longer. The same for the
    same arguments."""
    rng = random.Random(f"faults {seed}")
    faults: list[Fault] = []
    now = rng.expovariate(1 / every)
    while now < _LAST_FAULT * seconds:
        name = _draw(rng, [name for name in kinds if _may_come(KINDS[name], now, seconds)])
        if name is None:
            break
        kind = KINDS[name]
        duration = rng.uniform(kind.shortest, kind.longest)
        duration = round(duration + hang * (name == "hang"), 2)
        faults.append(Fault(round(now, 2), name, duration))
        now += duration + rng.expovariate(1 / every)
    return faults


def _may_come(kind: Kind, now: float, seconds: float) -> bool:
    return not kind.ends or now < last_end(kind.ends, seconds)


def _draw(rng: random.Random, names: list[str]) -> str | None:
    return rng.choices(names, [KINDS[name].weight for name in names])[0] if names else None
