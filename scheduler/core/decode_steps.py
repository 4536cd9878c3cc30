"""How often a step repeats its decodes: one plan, one message and one launch for several tokens
of each row.

At most `--decode-steps` times, and as often as all of this allows:

- All its sequences are decodes, and nobody who waits could be admitted or has a chunk to compute
  in it (the policy says so, `Decision.repeats`). A suspect (scheduler/core/suspects.py) makes one
  token at a time.
- No row comes to its limit before the last repetition: a length is certain, and wastes nothing.
  An end token is found late, when at most depth * decode_steps - 1 further tokens of the request
  are in flight, and a cancel or a stop string may come one token earlier. They are dropped and
  counted.
- The step's tokens, of all repetitions, are within the step's budget.
- What arrives waits no longer than for steps that repeat nothing (scheduler/core/window.py).
- The free blocks hold all repetitions of all rows. Fewer repetitions come before a preemption.
"""

from __future__ import annotations

import numpy as np

from scheduler.core.ledger import Ledger


def repetitions(ledger: Ledger, at: np.ndarray, most: int) -> int:
    """How often a step decodes the rows `at`, int64 [s], for which one repetition fits: 1 to
    `most`, which is at least 1."""
    rows, tables = ledger.rows, ledger.tables
    if most > 1:
        most = min(most, int((rows.limit[at] - rows.known[at]).min()))
    while most > 1:
        missing = tables.missing(at, np.maximum(rows.computed[at] + most, rows.reserved[at]))
        if missing.sum() <= ledger.allocator.num_free:
            return most
        most -= 1
    return 1
