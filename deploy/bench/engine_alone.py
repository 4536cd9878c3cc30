"""An engine without wire and clients: what a step costs it by itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from scheduler.core.front_end import EngineStatus, EventBatch, Submission
from scheduler.core.worker_link import (
    Connected,
    Inbox,
    StepAnswer,
    StepPlan,
    StepTimes,
    WorkerInfo,
)

VOCAB_SIZE = 32000
_WORKER = WorkerInfo(
    incarnation=1,
    last_executed_step=0,
    device="cuda",
    fingerprint="",
    vocab_size=VOCAB_SIZE,
    max_model_len=4096,
    num_blocks=20_000,
    block_size=16,
    max_rows=256,
    max_step_tokens=8192,
    max_steps_in_flight=8,
    max_decode_steps=8,
)


class Answers:
    """A link whose worker answers a step when it is asked to, with tokens that no request has in
    common. `device_ns`: what it says that a repetition took."""

    def __init__(self, device_ns: int) -> None:
        self._times = StepTimes(device=device_ns)
        self._due: deque[tuple[StepPlan, int]] = deque()  # with the number of the repetition
        self._rng = np.random.default_rng(0)

    def start(self, inbox: Inbox) -> None:
        self._inbox = inbox
        inbox.post(Connected(_WORKER, resumed=False))

    def send(self, plan: StepPlan) -> None:
        self._due.extend((plan, sub_step) for sub_step in range(plan.decode_steps))

    def answer(self) -> int:
        """One repetition, if one is due. Returns how many tokens it made."""
        if not self._due:
            return 0
        plan, sub_step = self._due.popleft()
        count = int(plan.samples.sum())
        tokens = self._rng.integers(0, VOCAB_SIZE, count, np.int32)
        self._inbox.post(StepAnswer(plan.step_id, tokens, None, self._times, sub_step=sub_step))
        return count

    def give_up(self) -> None:
        raise RuntimeError("it answers when it is asked to")

    def close(self) -> None:
        """Nothing is open."""


class Nobody:
    """A front end that nobody asks."""

    def deliver(self, batch: EventBatch) -> None:
        """Its tokens are nobody's."""

    def status_changed(self, status: EngineStatus) -> None:
        """Nobody waits for it."""


def submission(handle: int, ids: Sequence[int], max_tokens: int) -> Submission:
    return Submission(
        handle=handle,
        request_id=str(handle),
        prompt_ids=np.array(ids, np.int32),
        max_tokens=max_tokens,
        temperature=0.0,
        seed=1,
        stop_ids=frozenset(),
        arrival=time.monotonic(),
    )
