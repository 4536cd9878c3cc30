"""Turns a decision into a step, and the books to what they will be once it has run."""

from __future__ import annotations

import numpy as np

from scheduler.core.decode_steps import repetitions
from scheduler.core.ledger import Ledger
from scheduler.core.policy import Decision, Policy
from scheduler.core.request import Request
from scheduler.core.step_in_flight import StepInFlight
from scheduler.core.window import Window
from scheduler.core.worker_link import NewRow, StepPlan


class Planner:
    """Plans the steps of one incarnation of the worker."""

    def __init__(self, policy: Policy, budget: int, incarnation: int, last_step: int) -> None:
        self.policy = policy
        self.budget = budget
        self.incarnation = incarnation
        self.next_step = last_step + 1

    def plan(
        self, ledger: Ledger, window: Window, now: float
    ) -> tuple[StepPlan, StepInFlight] | None:
        """The next step, with its blocks taken and its rows' counts moved; None if
        there is nothing to run."""
        decision = self.policy.decide(ledger, self.budget, now)
        if not len(decision.rows):
            return None
        rows = ledger.rows
        at, query_lens = decision.rows, decision.query_lens
        known = rows.known[at]
        rewrites = known >= rows.limit[at]
        count = self._repetitions(ledger, window, decision, now)
        context_lens = rows.computed[at] + np.where(rewrites, 0, query_lens)
        last_lens = context_lens + (count - 1) if count > 1 else context_lens
        appended = ledger.tables.grow(at, np.maximum(last_lens, rows.reserved[at]))
        samples = rewrites | (context_lens == known)
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
            slot_mapping=_slots(ledger, at, query_lens, context_lens, count),
            samples=samples,
            decode_steps=count,
            logprob_counts=rows.logprobs[at[samples]] if rows.num_with_logprobs else None,
        )
        rows.computed[at] = last_lens
        return plan, self._commit(ledger, decision, plan, context_lens, rewrites)

    def _repetitions(self, ledger: Ledger, window: Window, decision: Decision, now: float) -> int:
        if not decision.repeats or window.decode_steps == 1:
            return 1
        count = len(decision.rows)
        most = min(window.repetitions(count, now), self.budget // count)
        return repetitions(ledger, decision.rows, most)

    def _commit(
        self,
        ledger: Ledger,
        decision: Decision,
        plan: StepPlan,
        context_lens: np.ndarray,
        rewrites: np.ndarray,
    ) -> StepInFlight:
        rows, samples = ledger.rows, plan.samples
        sampling = decision.rows[samples]
        rows.known[sampling] += plan.decode_steps * ~rewrites[samples]
        ledger.freed_rows.clear()
        step_id, self.next_step = self.next_step, self.next_step + 1
        return StepInFlight(
            step_id=step_id,
            decode_steps=plan.decode_steps,
            num_tokens=int(decision.query_lens.sum()),
            rows=sampling,
            generations=rows.generation[sampling],
            requests=rows.request[sampling],
            rewrites=rewrites[samples],
            all_requests=rows.request[decision.rows],
            all_rows=decision.rows,
            all_generations=rows.generation[decision.rows],
            context_lens=context_lens,
            slots=plan.slot_mapping.reshape(plan.decode_steps, -1),
        )


def _slots(
    ledger: Ledger, at: np.ndarray, query_lens: np.ndarray, context_lens: np.ndarray, count: int
) -> np.ndarray:
    """int64 [t], or [k * s] for `count` k repetitions, one after the other."""
    starts = context_lens - query_lens
    if count == 1:
        return ledger.tables.slots(at, starts, query_lens)
    by_row = ledger.tables.slots(at, starts, np.full(len(at), count))
    return by_row.reshape(-1, count).T.ravel()


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
        penalties=request.submission.penalties,
        top_logprobs=request.submission.top_logprobs,
    )
