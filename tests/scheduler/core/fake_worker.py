"""A worker for tests of the core: one object, no threads, and answers on demand.

Its model hashes the tokens that it reads through the row's block table, so a wrong
slot, a lost block or a token out of place changes everything that follows. So do penalties
that were lost, and a prompt that is taken for output; log-probabilities are of those tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import astuple

import numpy as np

from scheduler.core.penalties import NO_PENALTIES, Penalties
from scheduler.core.worker_link import (
    Connected,
    Inbox,
    NewRow,
    StepAnswer,
    StepPlan,
    StepTimes,
    WorkerInfo,
)
from tests.scheduler.logprob_columns import Entry, columns_of

VOCAB = 97


def next_token(
    prefix: Sequence[int], seed: int = 0, penalties: Penalties = NO_PENALTIES, prompt_len: int = 0
) -> int:
    penalized = () if penalties == NO_PENALTIES else (*astuple(penalties), prompt_len)
    return hash((seed, *penalized, *prefix)) % VOCAB


def expected_tokens(
    prompt: list[int], count: int, seed: int = 0, penalties: Penalties = NO_PENALTIES
) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, seed, penalties, len(prompt)))
    return tokens[len(prompt) :]


def expected_logprobs(prefix: Sequence[int], token: int, top: int) -> Entry:
    """Ids and values of the token that comes after the prefix: its own, then the `top` ones."""
    state = hash(tuple(prefix))
    ids = [token, *((state + i) % VOCAB for i in range(top))]
    return ids, [-(hash((state, i)) % 4096) / 256 for i in ids]


class FakeRow:
    def __init__(self, new: NewRow, block_size: int) -> None:
        self.tokens = new.token_ids.tolist()
        self.seed = new.seed
        self.penalties = new.penalties
        self.prompt_len = new.prompt_len
        self.num_logprobs = 0 if new.top_logprobs is None else 1 + new.top_logprobs
        self.blocks: list[int] = new.block_ids.tolist()
        self.in_pool = new.tokens_in_pool
        assert self.in_pool < len(self.tokens)
        assert len(self.blocks) * block_size >= self.in_pool


class FakeWorker:
    """Implements WorkerLink. Steps run when they are sent and are answered when the
    test says so, one repetition after the other. `script` overrides the model: request id ->
    output tokens."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_rows: int = 8,
        max_model_len: int = 128,
        max_step_tokens: int = 64,
        max_steps_in_flight: int = 8,
        max_decode_steps: int = 8,
        device: str = "cpu",
    ) -> None:
        self.info = WorkerInfo(
            incarnation=1,
            last_executed_step=0,
            device=device,
            fingerprint="",
            vocab_size=VOCAB,
            max_model_len=max_model_len,
            num_blocks=num_blocks,
            block_size=block_size,
            max_rows=max_rows,
            max_step_tokens=max_step_tokens,
            max_steps_in_flight=max_steps_in_flight,
            max_decode_steps=max_decode_steps,
        )
        self.script: dict[str, list[int]] = {}
        self.non_finite: set[str] = set()
        self.log: list[StepPlan] = []
        self.step_requests: list[list[str]] = []
        self.rows: dict[int, FakeRow] = {}
        self.names: dict[int, str] = {}
        self.slots: dict[int, tuple[int, ...]] = {}
        self.unanswered: deque[StepAnswer] = deque()  # one of each repetition
        self.inbox: Inbox | None = None
        self.given_up = 0

    def start(self, inbox: Inbox) -> None:
        self.inbox = inbox

    def connect(self, resumed: bool = False) -> None:
        assert self.inbox is not None
        self.inbox.post(Connected(self.info, resumed))

    def give_up(self) -> None:
        self.given_up += 1

    def close(self) -> None:
        pass

    def restart(self, **changes: int) -> None:
        """A new incarnation: rows, pool and unanswered steps are gone."""
        values = {name: getattr(self.info, name) for name in WorkerInfo.__slots__}
        values |= changes | {"incarnation": self.info.incarnation + 1}
        self.info = WorkerInfo(**values)
        self.rows.clear()
        self.slots.clear()
        self.unanswered.clear()
        self.connect()

    def send(self, plan: StepPlan) -> None:
        assert plan.incarnation == self.info.incarnation
        assert self.num_unanswered < self.info.max_steps_in_flight
        self.log.append(plan)
        for row in plan.free_rows.tolist():
            del self.rows[row]
        for new in plan.new_rows:
            assert new.row not in self.rows
            self.rows[new.row] = FakeRow(new, self.info.block_size)
            self.names[new.row] = new.request_id
        start = 0
        for row, count in zip(plan.table_rows.tolist(), plan.table_counts.tolist(), strict=True):
            self.rows[row].blocks += plan.table_blocks[start : start + count].tolist()
            start += count
        self.step_requests.append([self.names[row] for row in plan.rows.tolist()])
        count, tokens = plan.decode_steps, int(plan.query_lens.sum())
        assert 1 <= count <= self.info.max_decode_steps
        assert 0 < count * tokens <= self.info.max_step_tokens
        assert len(set(plan.slot_mapping.tolist())) == len(plan.slot_mapping) == count * tokens
        if count > 1:
            assert (plan.query_lens == 1).all()
            assert plan.samples.all()
        counts = [self.rows[row].num_logprobs for row in plan.rows[plan.samples].tolist()]
        told = plan.logprob_counts
        assert (told is None and not any(counts)) or told.tolist() == counts
        for sub_step, slots in enumerate(plan.slot_mapping.reshape(count, tokens)):
            self.unanswered.append(self._forward(plan, sub_step, slots.tolist()))

    def _forward(self, plan: StepPlan, sub_step: int, slots: list[int]) -> StepAnswer:
        """One repetition, which writes to `slots`."""
        tokens: list[int] = []
        bad: list[bool] = []
        logprobs: list[Entry | None] = []
        start = 0
        for row, length, context, samples in zip(
            plan.rows.tolist(),
            plan.query_lens.tolist(),
            (plan.context_lens + sub_step).tolist(),
            plan.samples.tolist(),
            strict=True,
        ):
            state = self.rows[row]
            rewrites = (context, length) == (state.in_pool, 1)
            assert rewrites or context - length == state.in_pool
            for position, slot in zip(
                range(context - length, context),
                slots[start : start + length],
                strict=True,
            ):
                assert slot == self._slot(state, position)
                assert slot >= self.info.block_size, "the scratch block was written"
                prefix = self.slots[self._slot(state, position - 1)] if position else ()
                self.slots[slot] = (*prefix, state.tokens[position])
            start += length
            state.in_pool = context
            if samples:
                assert context == len(state.tokens) - rewrites
                token = self._sample(row)
                # A rewrite samples the same token once more.
                assert state.tokens[context:] == [token] * rewrites
                state.tokens[context:] = [token]
                bad.append(self.names[row] in self.non_finite)
                tokens.append(token)
                asked = state.num_logprobs and not bad[-1]
                top = state.num_logprobs - 1
                logprobs.append(
                    expected_logprobs(self._prefix(state), token, top) if asked else None
                )
            else:
                assert context < len(state.tokens)
        non_finite = np.array(bad) if any(bad) else None
        times = StepTimes(device=1000)
        return StepAnswer(
            plan.step_id,
            np.array(tokens, np.int32),
            non_finite,
            times,
            sub_step=sub_step,
            logprobs=columns_of(logprobs),
        )

    def _prefix(self, state: FakeRow) -> tuple[int, ...]:
        return self.slots[self._slot(state, state.in_pool - 1)]

    def _sample(self, row: int) -> int:
        state, name = self.rows[row], self.names[row]
        if name in self.script:
            prompt_len = self.prompt_lens[name]
            return self.script[name][state.in_pool - prompt_len]
        return next_token(self._prefix(state), state.seed, state.penalties, state.prompt_len)

    def _slot(self, state: FakeRow, position: int) -> int:
        size = self.info.block_size
        return state.blocks[position // size] * size + position % size

    @property
    def num_unanswered(self) -> int:
        """Steps that have not had all their answers."""
        return len({answer.step_id for answer in self.unanswered})

    @property
    def prompt_lens(self) -> dict[str, int]:
        return {new.request_id: new.prompt_len for plan in self.log for new in plan.new_rows}

    def answer(self) -> bool:
        """Answers the next repetition of the oldest step; False if there is none."""
        assert self.inbox is not None
        if not self.unanswered:
            return False
        self.inbox.post(self.unanswered.popleft())
        return True
