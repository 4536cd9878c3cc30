"""The state between a worker and its scheduler: epoch, incarnation, rows, kept answers."""

from __future__ import annotations

import logging
import secrets
import threading
import time

from nanoserve.v1 import worker_pb2
from worker.answer import Answer, RefusedAnswer
from worker.geometry import PROTOCOL_VERSION, Geometry
from worker.ledger import Ledger
from worker.recorder import Recorders
from worker.refusal import StepRefused
from worker.statistics import Statistics

log = logging.getLogger(__name__)


class SessionError(Exception):
    """A call that contradicts the session: FAILED_PRECONDITION."""


class Session:
    """Thread-safe. No method waits for a step. `recorders` are told of every step."""

    def __init__(
        self, geometry: Geometry, *, check_slots: bool, recorders: Recorders | None = None
    ) -> None:
        self.geometry = geometry
        self.statistics = Statistics()
        self._recorders = recorders or Recorders()
        self._check_slots = check_slots
        self._lock = threading.Lock()
        self._epoch = 0
        self._start_incarnation()

    def _start_incarnation(self, incarnation: int = 0, last_step: int = 0) -> None:
        self._incarnation = incarnation or secrets.randbits(64) or 1
        self._ledger = Ledger(self.geometry, check_slots=self._check_slots)
        self._last_step = last_step
        self._kept: dict[int, Answer] = {}
        self._refused: RefusedAnswer | None = None
        self.statistics.incarnations += 1
        self._recorders.began(self._incarnation)

    def replay(self, incarnation: int, last_step: int) -> None:
        """Starts an incarnation that a recording names, after the step `last_step`."""
        with self._lock:
            self._start_incarnation(incarnation, last_step)

    def connect(
        self, request: worker_pb2.ConnectRequest
    ) -> tuple[worker_pb2.ConnectResponse, bool]:
        """The response, and whether the epoch is newer than the last one. Rows of an older
        epoch are dropped, and with them the incarnation. Raises SessionError."""
        if request.protocol_version != PROTOCOL_VERSION:
            raise SessionError(
                f"protocol_version is {request.protocol_version}, this worker speaks "
                f"{PROTOCOL_VERSION}: run scheduler and worker of the same release"
            )
        ours = self.geometry.fingerprint
        if request.HasField("model_fingerprint") and request.model_fingerprint != ours:
            raise SessionError(
                f"model_fingerprint is {request.model_fingerprint}, this worker serves {ours}: "
                "start both with the same model"
            )
        with self._lock:
            if request.epoch < max(self._epoch, 1):
                raise SessionError(
                    f"epoch is {request.epoch}, must be at least {max(self._epoch, 1)}: a newer "
                    "scheduler has this worker; to take it over, start this one again, by a clock "
                    "that is not behind"
                )
            newer = request.epoch > self._epoch
            if newer and self._epoch:
                self._start_incarnation()
            self._epoch = request.epoch
            self.statistics.connects += 1
            return self._describe(), newer

    def _describe(self) -> worker_pb2.ConnectResponse:
        response = self.geometry.description()
        response.incarnation = self._incarnation
        response.last_executed_step = self._last_step
        return response

    def check_epoch(self, epoch: int) -> None:
        """Raises SessionError unless `epoch` is the last Connect's."""
        with self._lock:
            self._check_epoch(epoch)

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            raise SessionError(
                f"epoch is {epoch}, but the last Connect's is {self._epoch}"
                + ("" if epoch < self._epoch else ": Connect first")
            )

    def reset(self, epoch: int) -> int:
        """Starts an incarnation and returns it. Raises SessionError for another epoch."""
        with self._lock:
            self._check_epoch(epoch)
            self._start_incarnation()
            self.statistics.resets += 1
            return self._incarnation

    def admit(
        self, step: worker_pb2.Step, arrived_ns: int, unanswered: int
    ) -> tuple[Answer | RefusedAnswer, bool]:
        """The answer to a step, and whether it is to be launched: not if it is a repeat or
        refused. `unanswered` counts the steps of the stream without an answer, this one
        included, when it arrived."""
        started_ns = time.monotonic_ns()
        with self._lock:
            try:
                if answered := self._answered(step):
                    return answered, False
                self._check_order(step, unanswered)
                checked = self._ledger.admit(step)
            except StepRefused as refusal:
                self._recorders.refused(step, unanswered, refusal)
                return self._refuse(step, refusal), False
            is_first = self.statistics.steps == 0
            answer = Answer(checked, arrived_ns, started_ns, self.statistics.durations, is_first)
            self._recorders.admitted(step, unanswered, answer)
            self._keep(answer)
        if log.isEnabledFor(logging.DEBUG):
            for new in step.new_rows:
                trace = new.trace_parent or "none"
                log.debug("request %r takes row %d; trace: %s", new.request_id, new.row, trace)
        return answer, True

    def _refuse(self, step: worker_pb2.Step, refusal: StepRefused) -> RefusedAnswer:
        """A step of another incarnation may have been on its way while this one began, so it
        says nothing about this one's steps; any other refusal stops them until Reset."""
        self.statistics.refused_steps[refusal.reason] += 1
        refused = RefusedAnswer(step.step_id, refusal)
        ours = refusal.reason != worker_pb2.REFUSAL_REASON_WRONG_INCARNATION
        if ours and not self._refused:
            self._refused = refused
            log.error("refused step %d: %s", step.step_id, refusal)
        return refused

    def _answered(self, step: worker_pb2.Step) -> Answer | RefusedAnswer | None:
        """The answer that a repeated step had before."""
        if step.incarnation != self._incarnation:
            raise StepRefused(
                f"incarnation is {step.incarnation}, must be {self._incarnation}",
                reason=worker_pb2.REFUSAL_REASON_WRONG_INCARNATION,
            )
        if kept := self._kept.get(step.step_id):
            return kept
        if self._refused and self._refused.step_id == step.step_id:
            return self._refused
        return None

    def _check_order(self, step: worker_pb2.Step, unanswered: int) -> None:
        if self._refused:
            raise StepRefused(
                f"step {self._refused.step_id} was refused: call Reset first",
                reason=worker_pb2.REFUSAL_REASON_FOLLOWS_REFUSED,
            )
        if step.step_id != self._last_step + 1:
            kept = f" or kept ({min(self._kept)} to {max(self._kept)})" if self._kept else ""
            raise StepRefused(
                f"step_id is {step.step_id}, must be {self._last_step + 1}{kept}",
                reason=worker_pb2.REFUSAL_REASON_WRONG_STEP_ID,
            )
        if unanswered > self.geometry.max_steps_in_flight:
            raise StepRefused(
                f"{unanswered} steps are unanswered, must be at most max_steps_in_flight "
                f"{self.geometry.max_steps_in_flight}"
            )

    def _keep(self, answer: Answer) -> None:
        step = answer.step
        self._last_step = step.step_id
        self._kept[step.step_id] = answer
        self._kept.pop(step.step_id - 2 * self.geometry.max_steps_in_flight, None)
        self.statistics.steps += 1
        self.statistics.tokens_computed += step.num_tokens * step.decode_steps
        self.statistics.tokens_sampled += len(step.sampling) * step.decode_steps

    def status(self) -> worker_pb2.WorkerServiceGetStatusResponse:
        with self._lock:
            return worker_pb2.WorkerServiceGetStatusResponse(
                incarnation=self._incarnation,
                epoch=self._epoch,
                last_executed_step=self._last_step,
                live_rows=self._ledger.live_rows,
                steps=self.statistics.steps,
                tokens_computed=self.statistics.tokens_computed,
                tokens_sampled=self.statistics.tokens_sampled,
                refusing=self._refused is not None,
                pool=self.geometry.pool_message(),
                device=self.geometry.device,
            )
