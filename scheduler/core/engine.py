"""The engine loop: takes messages, plans and sends steps, passes events on."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from scheduler.core import audit
from scheduler.core.acceptance import accept
from scheduler.core.admission import refusal, request_for
from scheduler.core.config import EngineConfig
from scheduler.core.continuous_batching import ContinuousBatching
from scheduler.core.engine_loop import EngineLoop
from scheduler.core.engine_status import take_status
from scheduler.core.finish import end_batch, finish, release_held
from scheduler.core.front_end import (
    Abort,
    CallTotals,
    EngineStatus,
    Failure,
    FailureKind,
    FinishReason,
    FrontEnd,
    SnapshotRequest,
    Submission,
)
from scheduler.core.incarnation import Incarnation, begin, carry_over
from scheduler.core.inquest import HUNG_SHARE, Inquest
from scheduler.core.outbox import Outbox
from scheduler.core.policy import Policy
from scheduler.core.presence import Presence
from scheduler.core.queue_wait import QueueWait
from scheduler.core.request import Request, Verdict
from scheduler.core.snapshot import take_snapshot
from scheduler.core.statistics import Statistics
from scheduler.core.suspects import OneByOne
from scheduler.core.totals import Totals
from scheduler.core.worker_link import (
    Connected,
    Disconnected,
    LinkEvent,
    StepAnswer,
    StepRefused,
    WorkerLink,
)

log = logging.getLogger(__name__)

# Handled in one turn. A thousand submissions that come together take 35 ms, in which the device
# would have nothing to do.
MOST_MESSAGES = 32
# With at most so many steps in flight nothing hides what it takes a thread to wake up.
_FEW_STEPS = 1
# A prompt that finds the device idle waits for nothing but its step. The link's thread has to wake
# up for that, and then must not wait for the interpreter's lock as well.
HAND_OVER_SECONDS = 50e-6
DRAINING = "the server is draining"


@dataclass(frozen=True, slots=True)
class _Drain:
    deadline: float


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Message = Submission | Abort | SnapshotRequest | LinkEvent | _Drain | _Stop


class Engine:
    """Runs requests on one worker.

    Everything is decided in `turn`, which one thread at a time calls (EngineLoop); `post` and
    what EnginePort lists may be called from any. A submission that is refused gets its one final
    event like any other.
    """

    def __init__(
        self,
        config: EngineConfig,
        link: WorkerLink,
        front_end: FrontEnd,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_fatal: Callable[[Exception], None] | None = None,
    ) -> None:
        """`on_fatal` is called with what ended its loop."""
        self.config = config
        self.statistics = Statistics()
        self.calls = CallTotals()  # as last reported
        self.worker: Incarnation | None = None  # None before the first connection
        self._link = link
        self._front_end = front_end
        self._policy = OneByOne(policy or ContinuousBatching())
        self._clock = clock
        self._loop: EngineLoop[_Message] = EngineLoop(self, on_fatal)
        self._outbox = Outbox()
        self._presence = Presence(config.recovery_timeout)
        self._queue_wait = QueueWait()
        self._inquest = Inquest()
        self._drain_deadline: float | None = None
        self._stopped = False
        self._orders = itertools.count()
        self._wait: float | None = None  # seconds until a step is due
        self._status = self._take_status()

    # From any thread.

    def start(self) -> None:
        self._link.start(self)
        self._loop.start()

    def stop(self) -> None:
        """Ends the loop; unfinished requests fail with UNAVAILABLE."""
        self._loop.bring(_Stop())
        self._loop.join()
        self._link.close()

    def post(self, event: LinkEvent) -> None:
        self._loop.bring(event)

    def submit(self, submission: Submission) -> None:
        self._loop.bring(submission)

    def abort(self, abort: Abort) -> None:
        self._loop.bring(abort)

    def drain(self, deadline: float) -> None:
        self._loop.bring(_Drain(deadline))

    def status(self) -> EngineStatus:
        return self._status

    @property
    def runs(self) -> bool:
        """Whether its loop has begun and not ended."""
        return self._loop.runs

    def ask_snapshot(self, request: SnapshotRequest) -> None:
        self._loop.bring(request)

    def report(self, totals: CallTotals) -> None:
        self.calls = totals

    @property
    def totals(self) -> Totals:
        return self.statistics.totals

    # The loop.

    @property
    def is_over(self) -> bool:
        return self._stopped

    @property
    def in_a_hurry(self) -> bool:
        return self.worker is not None and len(self.worker.window) <= _FEW_STEPS

    @property
    def pause(self) -> float | None:
        """Seconds until a step is due, or the drain's end; None if neither will be."""
        wait = self._wait
        if self._drain_deadline is None or not (self.worker and self.worker.ledger.num_requests):
            return wait
        left = max(0.0, self._drain_deadline - self._clock())
        return left if wait is None else min(wait, left)

    def turn(self) -> None:
        """Takes messages, MOST_MESSAGES at most, and does all there is to do."""
        inbox = self._loop.inbox
        for _ in range(min(inbox.qsize(), MOST_MESSAGES)):
            self._handle(inbox.get())
        now = self._clock()
        if self._drain_deadline is not None and now >= self._drain_deadline:
            self._fail_all("when the drain timeout passed")
        if self.worker is not None:
            self._watch_worker(self.worker, now)
            end_batch(self.worker.ledger, self._outbox, now)
            ledger = self.worker.ledger
            if ledger.waiting or ledger.rows.num_live:
                self._send_steps(self.worker)
            else:
                self._wait = None
            self._queue_wait.observe(ledger.num_admitted, len(ledger.waiting), now)
            if self.config.audit:
                audit.check(self.worker.ledger, self.worker.window)
        self._flush()

    def _handle(self, message: _Message) -> None:
        match message:
            case StepAnswer():
                self._on_answer(message)
            case Submission():
                self._on_submission(message)
            case Abort():
                self._on_abort(message)
            case SnapshotRequest():
                ledger = self.worker.ledger if self.worker else None
                times = self.statistics.requests
                self._outbox.snapshot(take_snapshot(message, ledger, times, self._clock()))
            case Connected():
                self._on_connected(message)
            case Disconnected():
                self._on_disconnected(message)
            case StepRefused():
                self._on_refused(message)
            case _Drain():
                self._drain_deadline = message.deadline
            case _Stop():
                self._stopped = True
                self._fail_all("when the server stopped")

    def _send_steps(self, worker: Incarnation) -> None:
        for number in itertools.count():
            now = self._clock()
            self._wait = worker.window.wait_before_sending(now)
            if self._wait is None or self._wait > 0:
                return
            if number:
                # The link's thread gets the interpreter's lock, so that a step is on its way while
                # the next is planned. Else all of a pipeline that fills would leave together.
                time.sleep(0)
            self._expire_waiting(worker, now)
            planned = worker.planner.plan(worker.ledger, worker.window, now)
            if planned is None:
                self._wait = self._policy.due(worker.ledger, now)
                return
            plan, step = planned
            worker.window.sent(step, now)
            self._link.send(plan)
            if plan.new_rows and len(worker.window) == 1:
                time.sleep(HAND_OVER_SECONDS)

    def _flush(self) -> None:
        before, self._status = self._status, self._take_status()
        if batch := self._outbox.take():
            self._front_end.deliver(batch)
        after = self._status
        if (before.ready, before.reason, before.limits) != (
            after.ready,
            after.reason,
            after.limits,
        ):
            self._front_end.status_changed(after)

    # Requests.

    def _on_submission(self, submission: Submission) -> None:
        worker, now = self.worker, self._clock()
        why = DRAINING if self._closing else self._presence.turns_away(now)
        if worker is None or why:
            why = why or self._presence.why_not_ready(now)
            self._outbox.fail(submission.handle, FailureKind.UNAVAILABLE, why)
            return
        expected = self._queue_wait.expected(len(worker.ledger.waiting), now)
        failure = refusal(submission, worker.ledger, worker.limits, self.config, expected)
        if failure is not None:
            self._outbox.end(failure)
            return
        worker.ledger.enqueue(request_for(submission, next(self._orders), worker.limits))

    def _on_abort(self, abort: Abort) -> None:
        request = self.worker.ledger.by_handle.get(abort.handle) if self.worker else None
        if request is None or self.worker is None:
            return  # it has ended: its one final event is out or on its way
        if isinstance(abort.reason, FinishReason):
            verdict = Verdict(abort.reason, output_tokens=abort.output_tokens)
            finish(self.worker.ledger, request, verdict, self._outbox, self._clock())
        else:
            self._fail(self.worker, request, abort.reason, abort.reason.value)

    def _fail(self, worker: Incarnation, request: Request, kind: FailureKind, message: str) -> None:
        worker.ledger.end(request)
        message, usage = f"request {request.request_id}: {message}", request.usage(self._clock())
        self._outbox.end(Failure(request.handle, kind, message, usage=usage))

    def _fail_all(self, reason: str) -> None:
        """`reason` follows "not finished"."""
        if self.worker is not None:
            release_held(self.worker.ledger, self._outbox, self._clock())
            for request in list(self.worker.ledger.by_handle.values()):
                message = f"not finished {reason}"
                self._fail(self.worker, request, FailureKind.UNAVAILABLE, message)

    def _expire_waiting(self, worker: Incarnation, now: float) -> None:
        """Those that could be admitted must not start after their deadline."""
        heads = itertools.islice(worker.ledger.waiting, worker.ledger.rows.num_free)
        for request in list(heads):
            deadline = request.submission.deadline
            if deadline is not None and deadline <= now:
                message = "its deadline passed while it waited"
                self._fail(worker, request, FailureKind.DEADLINE, message)

    # The worker.

    def _on_answer(self, answer: StepAnswer) -> None:
        if self.worker is None:
            return
        now = self._clock()
        step = self.worker.window.answered(answer, now)
        if not step.unanswered:
            self.totals.steps += 1
            tokens = step.num_tokens * step.decode_steps
            self.statistics.steps.answered(step.answers, len(step.all_requests), tokens)
        accept(self.worker.ledger, step, answer, self._outbox, now)
        if len(answer.tokens):
            self._presence.breaker.progressed()

    def _on_refused(self, refused: StepRefused) -> None:
        """Ends the request at fault; the others are recomputed on the next incarnation."""
        log.error("the worker refused step %d: %s", refused.step_id, refused.message)
        if self.worker is None:
            return
        request = self._at_fault(self.worker, refused)
        if request is not None and not request.ended and request.verdict is None:
            message = f"the worker refused its step: {refused.message}"
            self._inquest.refused()
            self._fail(self.worker, request, FailureKind.INTERNAL, message)

    @staticmethod
    def _at_fault(worker: Incarnation, refused: StepRefused) -> Request | None:
        if refused.sequence is None:
            return worker.ledger.by_id.get(refused.request_id)
        for step in worker.window.steps:
            if step.step_id == refused.step_id:
                request: Request = step.all_requests[refused.sequence]
                return request
        return None

    def _on_connected(self, connected: Connected) -> None:
        info, old = connected.info, self.worker
        log.info("worker %016x is connected (%s)", info.incarnation, info.device)
        self._presence.connected()
        if connected.resumed and old is not None:
            old.window.resumed(self._clock())
            self._inquest.resumed()
            return
        self.worker = begin(info, self.config, self._policy, self.statistics)
        if old is not None:
            self._recover(old, self.worker, self._clock())

    def _on_disconnected(self, disconnected: Disconnected) -> None:
        now = self._clock()
        if disconnected.step_failed:
            self._inquest.said()
        elif self.worker is not None and self._presence.is_connected:
            timeout = self.config.step_timeout_on(self.worker.info.device)
            if self.worker.window.overdue(now, HUNG_SHARE * timeout):
                self._inquest.hung()
        self._presence.away(disconnected.reason, now)

    def _recover(self, old: Incarnation, new: Incarnation, now: float) -> None:
        """Takes over the requests of a lost incarnation, to be recomputed."""
        self.totals.worker_restarts += 1
        release_held(old.ledger, self._outbox, now)
        requests = old.ledger.close()
        for failure in carry_over(requests, new, now):
            self._outbox.end(failure)
        finding = self._inquest.hold(old.window)
        if (culprit := finding.culprit) is not None and not culprit.ended:
            times = culprit.suspicion.losses
            message = f"the worker ended {times} times in a row while it computed this"
            self._fail(new, culprit, FailureKind.INTERNAL, message)
        if finding.counts:  # a worker that crashes whoever runs finds culprits without end
            self._presence.breaker.lost(now)
        self._policy.suspect(requests, new.window)

    def _watch_worker(self, worker: Incarnation, now: float) -> None:
        """Gives up a worker that owes an answer for too long, and after a while those who wait
        for one."""
        timeout = self.config.step_timeout_on(worker.info.device)
        step = worker.window.overdue(now, timeout)
        if step is not None and self._presence.is_connected:
            reason = f"it did not answer step {step.step_id} for {timeout:g} s"
            log.error("giving up the worker: %s", reason)
            self._presence.away(reason, now)
            self._inquest.hung()
            self._link.give_up()
        if worker.ledger.num_requests and (reason := self._presence.turns_away(now)):
            self._fail_all(f"as {reason}")

    @property
    def _closing(self) -> bool:
        return self._stopped or self._drain_deadline is not None

    def _take_status(self) -> EngineStatus:
        now = self._clock()
        reason = DRAINING if self._closing else self._presence.why_not_ready(now)
        return take_status(self.worker, self.totals, self._queue_wait, reason, now)
