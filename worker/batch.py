"""A checked step as the columns that the device needs, in the order that the kernels want."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worker.step import CheckedStep, exclusive_sum


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Sequences with one query token come first, whatever the order of the step, so that a
    one-token chunk takes the same kernel beside any neighbour. What is sampled keeps the
    step's order. s sequences, t tokens, m sampled, k repetitions."""

    rows: np.ndarray  # int32 [s]
    query_starts: np.ndarray  # int32 [s + 1]
    context_lens: np.ndarray  # int32 [s]
    slots: np.ndarray  # int64 [k, t]
    num_decodes: int
    max_query_len: int  # of the sequences that are no decodes; 1 if there is none
    max_context_len: int
    decode_context: int  # the sum of the decodes' context lengths
    sample_tokens: np.ndarray  # int64 [m]: the last token of each sequence that samples
    sample_rows: np.ndarray  # int32 [m]
    sample_positions: np.ndarray  # int32 [m]: where the sampled token goes

    @staticmethod
    def of(step: CheckedStep) -> StepBatch:
        return StepBatch._of_one(step) if len(step.rows) == 1 else StepBatch._of_any(step)

    @staticmethod
    def _of_any(step: CheckedStep) -> StepBatch:
        rows, lens, contexts, slots = step.rows, step.query_lens, step.context_lens, step.slots
        longer = lens > 1
        num_longer = int(np.count_nonzero(longer))
        num_decodes = len(lens) - num_longer
        order: np.ndarray | None = None
        if num_longer and longer[:num_decodes].any():
            order = np.argsort(longer, kind="stable")
            slots = slots[:, _token_order(lens, order)]
            rows, lens, contexts = rows[order], lens[order], contexts[order]
        starts = exclusive_sum(lens)
        last_tokens = starts[1:] - 1
        if order is not None:
            last_tokens = last_tokens[np.argsort(order)]
        return StepBatch(
            rows=rows,
            query_starts=starts,
            context_lens=contexts,
            slots=slots,
            num_decodes=num_decodes,
            max_query_len=int(lens.max()) if num_longer else 1,
            max_context_len=int(contexts.max(initial=1)),
            decode_context=int(contexts[:num_decodes].sum()),
            sample_tokens=last_tokens[step.sampling].astype(np.int64),
            sample_rows=step.rows[step.sampling],
            sample_positions=step.context_lens[step.sampling],
        )

    @staticmethod
    def _of_one(step: CheckedStep) -> StepBatch:
        """The same of a single sequence, in fewer passes."""
        length, context = int(step.query_lens[0]), int(step.context_lens[0])
        samples = len(step.sampling)  # 0 or 1
        is_decode = length == 1
        return StepBatch(
            rows=step.rows,
            query_starts=np.array([0, length], np.int32),
            context_lens=step.context_lens,
            slots=step.slots,
            num_decodes=int(is_decode),
            max_query_len=length,
            max_context_len=context,
            decode_context=context if is_decode else 0,
            sample_tokens=np.full(samples, length - 1, np.int64),
            sample_rows=step.rows[:samples],
            sample_positions=step.context_lens[:samples],
        )


def _token_order(lens: np.ndarray, order: np.ndarray) -> np.ndarray:
    """int64 [t]: where the tokens of the sequences, taken in `order`, stand in the step."""
    starts, moved = exclusive_sum(lens), exclusive_sum(lens[order])
    return np.arange(starts[-1]) + np.repeat(starts[order] - moved[:-1], lens[order])
