"""How loaded the server was, from the samples of its status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from deploy.loadtest.timeline import Run


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """Over the status samples within the measuring window, each weighing the same."""

    samples: int
    running_mean: float
    running_max: int
    waiting_mean: float
    waiting_max: int
    pool_used_mean: float  # share of the usable K/V blocks that requests hold
    pool_used_max: float
    preemptions: int  # within the window

    @classmethod
    def of(cls, run: Run) -> Self | None:
        """None if there is no sample."""
        inside = [s for s in run.samples if any(g.start <= s.t <= g.end for g in run.stages)]
        if not inside:
            return None
        running = np.array([sample.running for sample in inside])
        waiting = np.array([sample.waiting for sample in inside])
        used = np.array([pool_used(s.free_blocks, s.usable_blocks) for s in inside])
        return cls(
            samples=len(inside),
            running_mean=float(running.mean()),
            running_max=int(running.max()),
            waiting_mean=float(waiting.mean()),
            waiting_max=int(waiting.max()),
            pool_used_mean=float(used.mean()),
            pool_used_max=float(used.max()),
            preemptions=inside[-1].preemptions - inside[0].preemptions,
        )


def pool_used(free_blocks: int, usable_blocks: int) -> float:
    """Share of the blocks that are in use; 0 without a pool."""
    return 1 - free_blocks / usable_blocks if usable_blocks else 0.0
