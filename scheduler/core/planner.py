"""Turns a decision into a step, and the books to what they will be once it has run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.ledger import Ledger
from scheduler.core.policy import Decision, Policy
from scheduler.core.request import Request
from scheduler.core.worker_link import NewRow, StepPlan


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """What the engine remembers of a step until it is answered. Shapes: s sequences, m of
    them that sample, t tokens."""

    step_id: int
    num_tokens: int
    rows: np.ndarray  # int64 [m]
    generations: np.ndarray  # int64 [m]: the rows' when the step was planned
    requests: np.ndarray  # object [m]: who had the rows then
    rewrites: np.ndarray  # bool [m]: those at their limit, which sample their last token again
    all_requests: np.ndarray  # object [s]: of every sequence, to name one refused
    # Of every sequence too, for the prefix cache.
    all_rows: np.ndarray  # int64 [s]
    all_generations: np.ndarray  # int64 [s]
    context_lens: np.ndarray  # int64 [s]: tokens in the pool once it has run
    slots: np.ndarray  # int64 [t]: where it writes, for the audit


class Planner:
    """Plans the steps of one incarnation of the worker."""

    def __init__(self, policy: Policy, budget: int, incarnation: int, last_step: int) -> None:
        self.policy = policy
        self.budget = budget
        self.incarnation = incarnation
        self.next_step = last_step + 1

    def plan(self, ledger: Ledger, now: float) -> tuple[StepPlan, StepInFlight] | None:
        """The next step, with its blocks taken and its rows' counts moved; None if
        there is nothing to run."""
        decision = self.policy.decide(ledger, self.budget, now)
        if not len(decision.rows):
            return None
        rows = ledger.rows
        at, query_lens = decision.rows, decision.query_lens
        rewrites = rows.known[at] >= rows.limit[at]
        context_lens = rows.computed[at] + np.where(rewrites, 0, query_lens)
        appended = ledger.tables.grow(at, np.maximum(context_lens, rows.reserved[at]))
        samples = rewrites | (context_lens == rows.known[at])
        plan = StepPlan(
            step_id=self.next_step,
            incarnation=self.incarnation,
            free_rows=np.array(ledger.freed_rows, np.int32),
            new_rows=[_new_row(ledger, row) for row in decision.admitted],
            table_rows=appended.rows,
            table_counts=appended.counts,
            table_blocks=appended.blocks,
            rows=at.astype(np.int32),
            query_lens=query_lens.astype(np.int32),
            context_lens=context_lens.astype(np.int32),
            slot_mapping=ledger.tables.slots(at, context_lens - query_lens, query_lens),
            samples=samples,
        )
        rows.computed[at] = context_lens
        return plan, self._commit(ledger, decision, plan, rewrites)

    def _commit(
        self, ledger: Ledger, decision: Decision, plan: StepPlan, rewrites: np.ndarray
    ) -> StepInFlight:
        rows, samples = ledger.rows, plan.samples
        sampling = decision.rows[samples]
        rows.known[sampling] += ~rewrites[samples]
        ledger.freed_rows.clear()
        step_id, self.next_step = self.next_step, self.next_step + 1
        return StepInFlight(
            step_id=step_id,
            num_tokens=int(decision.query_lens.sum()),
            rows=sampling,
            generations=rows.generation[sampling],
            requests=rows.request[sampling],
            rewrites=rewrites[samples],
            all_requests=rows.request[decision.rows],
            all_rows=decision.rows,
            all_generations=rows.generation[decision.rows],
            context_lens=rows.computed[decision.rows],
            slots=plan.slot_mapping,
        )


def _new_row(ledger: Ledger, row: int) -> NewRow:
    """Its table holds what the row needs of this step already. Blocks that it shares come
    with it, its own as table appends, like all others."""
    request: Request = ledger.rows.request[row]
    shared = int(ledger.rows.computed[row])
    return NewRow(
        row=row,
        request_id=request.request_id,
        token_ids=request.tokens,
        prompt_len=request.prompt_len,
        block_ids=ledger.tables.table(row)[: ledger.tables.blocks_for(shared)].copy(),
        tokens_in_pool=shared,
        temperature=request.submission.temperature,
        seed=request.seed,
        trace_parent=request.submission.trace_parent,
    )
