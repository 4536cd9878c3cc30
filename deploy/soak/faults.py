"""What goes wrong, and when: a schedule that a seed makes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

# Kind -> (weight, shortest and longest duration in seconds).
KINDS: dict[str, tuple[float, float, float]] = {
    "kill": (4, 0, 0),  # kill -9 of the worker
    "replace": (2, 0, 0),  # SIGTERM of the worker, and another one on its address
    "pause": (2, 0.3, 1.5),  # SIGSTOP of the worker, shorter than the step timeout
    "hang": (1, 6.0, 8.0),  # SIGSTOP of the worker, longer than the step timeout
    "cut": (3, 0, 0),  # the link's connections are reset
    "partition": (2, 0.5, 4.0),  # the link's bytes stand still
}


@dataclass(frozen=True, slots=True)
class Fault:
    at: float  # seconds from the start of the load
    kind: str
    seconds: float  # how long it lasts, for those that last


def schedule(
    seed: int, seconds: float, every: float, kinds: Sequence[str] = tuple(KINDS)
) -> list[Fault]:
    """Faults of these kinds at exponential distances of mean `every` seconds; none in the last
    tenth, in which the load ends. The same for the same arguments."""
    rng = random.Random(f"faults {seed}")
    weights = [KINDS[kind][0] for kind in kinds]
    faults: list[Fault] = []
    now = rng.expovariate(1 / every)
    while now < 0.9 * seconds:
        kind = rng.choices(kinds, weights)[0]
        _, shortest, longest = KINDS[kind]
        duration = round(rng.uniform(shortest, longest), 2)
        faults.append(Fault(round(now, 2), kind, duration))
        now += duration + rng.expovariate(1 / every)
    return faults
