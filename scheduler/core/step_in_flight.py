"""What the engine remembers of a step until it is answered."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.worker_link import StepAnswer


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """The planner fills it, and the window adds the answers. Shapes: s sequences, m of them that
    sample, t tokens of one repetition, k repetitions. With k above 1 all three numbers are one."""

    step_id: int
    decode_steps: int  # k
    num_tokens: int  # t
    rows: np.ndarray  # int64 [m]
    generations: np.ndarray  # int64 [m]: the rows' when the step was planned
    requests: np.ndarray  # object [m]: who had the rows then
    rewrites: np.ndarray  # bool [m]: those at their limit, which sample their last token again
    all_requests: np.ndarray  # object [s]: of every sequence, to name one refused
    # Of every sequence too, for the prefix cache.
    all_rows: np.ndarray  # int64 [s]
    all_generations: np.ndarray  # int64 [s]
    context_lens: np.ndarray  # int64 [s]: tokens in the pool once its first repetition has run
    slots: np.ndarray  # int64 [k, t]: where it writes, for the audit
    answers: list[StepAnswer] = field(default_factory=list)  # so far, in order

    @property
    def unanswered(self) -> int:
        """Repetitions."""
        return self.decode_steps - len(self.answers)

    @property
    def only_decodes(self) -> bool:
        return self.num_tokens == len(self.rows) == len(self.all_rows)
