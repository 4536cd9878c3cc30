"""A link without a wire: both halves of the server in one process.

It is what the split is measured against. Steps reach the worker's session and executor as
messages in memory; nothing is serialized and no other process is woken.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import threading
import time
from collections.abc import Callable

import numpy as np

from scheduler.core.logprobs import Logprobs
from scheduler.core.worker_link import (
    Connected,
    Inbox,
    StepAnswer,
    StepPlan,
    StepTimes,
    WorkerInfo,
)
from scheduler.link.encoder import encode_step
from worker import executor
from worker.answer import Answer
from worker.executor import Executor
from worker.session import Session


class InProcessLink:
    """Implements WorkerLink over an executor of this process.

    One thread checks and launches, as the worker's does, and another waits for the
    device and answers.
    """

    def __init__(self, make_executor: Callable[[], Executor]) -> None:
        self._make_executor = make_executor
        self._plans: queue.SimpleQueue[tuple[StepPlan, int] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Answer, int] | None] = queue.SimpleQueue()

    def start(self, inbox: Inbox) -> None:
        for work in (self._launch, self._answer):
            threading.Thread(target=self._run, args=(work, inbox), daemon=True).start()

    def send(self, plan: StepPlan) -> None:
        self._plans.put((plan, time.monotonic_ns()))

    def give_up(self) -> None:
        """This worker cannot be replaced without its scheduler."""
        logging.getLogger(__name__).critical("the half that is the worker does not answer")
        os._exit(1)

    def close(self) -> None:
        self._plans.put(None)

    @staticmethod
    def _run(work: Callable[[Inbox], None], inbox: Inbox) -> None:
        try:
            work(inbox)
        except Exception:
            logging.getLogger(__name__).exception("the half that is the worker failed")
            os._exit(1)

    def _launch(self, inbox: Inbox) -> None:
        executor = self._make_executor()
        executor.warm_up()
        gc.collect()
        gc.freeze()  # as the worker does: no collection walks the model
        session = Session(executor.geometry, check_slots=False)
        inbox.post(Connected(_info(session), resumed=False))
        while (item := self._plans.get()) is not None:
            plan, sent_ns = item
            answer, _ = session.admit(encode_step(plan), sent_ns, 1)
            if not isinstance(answer, Answer):
                raise RuntimeError(f"step {plan.step_id} was refused")
            answer.pendings = executor.launch(answer.step)
            self._answers.put((answer, sent_ns))
        self._answers.put(None)

    def _answer(self, inbox: Inbox) -> None:
        while (item := self._answers.get()) is not None:
            answer, sent_ns = item
            for sub_step, pending in enumerate(answer.pendings):
                output = pending.wait()
                times = StepTimes(
                    device=output.device_ns,
                    sample=output.sample_ns,
                    round_trip=time.monotonic_ns() - sent_ns,
                )
                inbox.post(
                    StepAnswer(
                        answer.step.step_id,
                        np.asarray(output.tokens, np.int32),
                        output.non_finite,
                        times,
                        sub_step=sub_step,
                        logprobs=_logprobs(output.logprobs),
                    )
                )


def _logprobs(found: executor.Logprobs | None) -> Logprobs | None:
    if found is None:
        return None
    samples, counts = found.samples.astype(np.int64), found.counts.astype(np.int64)
    return Logprobs(samples, counts, found.ids, found.values)


def _info(session: Session) -> WorkerInfo:
    geometry, status = session.geometry, session.status()
    return WorkerInfo(
        incarnation=status.incarnation,
        last_executed_step=0,
        device=geometry.device,
        fingerprint=geometry.fingerprint,
        vocab_size=geometry.vocab_size,
        max_model_len=geometry.max_model_len,
        num_blocks=geometry.num_blocks,
        block_size=geometry.block_size,
        max_rows=geometry.max_rows,
        max_step_tokens=geometry.max_step_tokens,
        max_steps_in_flight=geometry.max_steps_in_flight,
        max_decode_steps=geometry.max_decode_steps,
    )
