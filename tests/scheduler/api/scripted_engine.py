"""An engine without a worker: each request gets a script of token ids."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scheduler.core.front_end import (
    Abort,
    CallTotals,
    EngineStatus,
    EventBatch,
    Failure,
    FailureKind,
    Finish,
    Finished,
    FinishReason,
    FrontEnd,
    Limits,
    RequestUsage,
    Snapshot,
    SnapshotRequest,
    Submission,
)
from scheduler.core.statistics import Statistics
from tests.scheduler.logprob_columns import Entry, columns_of

LIMITS = Limits(
    max_model_len=8192, vocab_size=49152, max_rows=64, block_size=16, usable_blocks=2048
)


def scripted_logprobs(place: int, token: int, top: int) -> Entry:
    """Of the token at `place` of an output, from 0 on: values that no other place has."""
    return [token, *range(place, place + top)], [-place - i / 32 for i in range(1 + top)]


@dataclass
class _Running:
    submission: Submission
    script: Sequence[int]
    made: int = 0


@dataclass
class ScriptedEngine:
    """One token per request and turn, a turn every `step_seconds`, all tokens of
    `tokens_per_turn` steps in one batch. Ends like the real one: stop tokens, max_tokens
    and the script's end. A request whose `request_id` is in `failures` fails so.

    `log` has every call of the front end in order, for tests to look at.
    """

    script: Sequence[int] | Callable[[Submission], Sequence[int]] = field(repr=False)
    step_seconds: float = 0.0
    tokens_per_turn: int = 1
    limits: Limits | None = LIMITS
    failures: dict[str, Failure] = field(default_factory=dict)
    snapshot: Callable[[SnapshotRequest], Snapshot] | None = None  # None: asks go unanswered

    def __post_init__(self) -> None:
        self.log: list[Submission | Abort] = []
        self.snapshots_asked: list[SnapshotRequest] = []
        self.calls = CallTotals()
        self.statistics = Statistics()
        self.drain_deadline: float | None = None
        self.running: dict[int, _Running] = {}
        self._inbox: queue.SimpleQueue[Submission | Abort | None] = queue.SimpleQueue()
        self._asks: queue.SimpleQueue[SnapshotRequest] = queue.SimpleQueue()
        self._ready = self.limits is not None
        self._turned_at = time.monotonic()
        self._frozen = False
        self._turning = threading.Lock()  # held over each turn
        self._stopped = False
        self._front_end: FrontEnd | None = None
        self._thread = threading.Thread(target=self._run, name="scripted-engine", daemon=True)

    def __call__(self, front_end: FrontEnd) -> ScriptedEngine:
        """So that an instance is its own factory."""
        self._front_end = front_end
        return self

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()

    def submit(self, submission: Submission) -> None:
        self.log.append(submission)
        self._inbox.put(submission)

    def abort(self, abort: Abort) -> None:
        self.log.append(abort)
        self._inbox.put(abort)

    def ask_snapshot(self, request: SnapshotRequest) -> None:
        self.snapshots_asked.append(request)
        self._asks.put(request)

    def report(self, totals: CallTotals) -> None:
        self.calls = totals

    def drain(self, deadline: float) -> None:
        self.drain_deadline = deadline

    def status(self) -> EngineStatus:
        return EngineStatus(
            ready=self._ready,
            reason="" if self._ready else "no worker has connected yet",
            limits=self.limits,
            worker_incarnation=7,
            worker_device="simulated",
            running=len(self.running),
            waiting=1,
            free_blocks=2,
            steps_in_flight=3,
            steps=4,
            prompt_tokens=5,
            output_tokens=6,
            discarded_tokens=8,
            preemptions=9,
            recomputed_tokens=10,
            worker_restarts=11,
            loop_turned_at=self._turned_at,
            cached_blocks=1,
            prefix_queries=12,
            prefix_hits=7,
        )

    def freeze(self) -> None:
        """The loop stands still from here on, and is in no turn."""
        with self._turning:
            self._frozen = True

    def thaw(self) -> None:
        self._frozen = False

    def finish(self) -> None:
        """Makes the rest of all scripts at once, however long."""
        self.tokens_per_turn, self.step_seconds = 1_000_000, 0.0

    def set_ready(self, ready: bool) -> None:
        self._ready = ready
        self._front_end.status_changed(self.status())

    @property
    def aborts(self) -> list[Abort]:
        return [entry for entry in self.log if isinstance(entry, Abort)]

    @property
    def submissions(self) -> list[Submission]:
        return [entry for entry in self.log if isinstance(entry, Submission)]

    def _run(self) -> None:
        while not self._stopped:
            time.sleep(self.step_seconds or 0.0005)
            with self._turning:
                if not self._frozen:
                    self._turn()

    def _turn(self) -> None:
        self._turned_at = time.monotonic()
        ends: list[Finished | Failure] = []
        self._receive(ends)
        tokens = self._make_tokens(ends)
        if self.drain_deadline is not None and time.monotonic() >= self.drain_deadline:
            for handle in list(self.running):
                usage = self._usage(self.running[handle], self.running[handle].made)
                kind = FailureKind.UNAVAILABLE
                ends.append(Failure(handle, kind, "the drain ended", usage=usage))
            self.running.clear()
        snapshots = self._take_snapshots()
        if tokens or ends or snapshots:
            handles, ids, entries = zip(*tokens, strict=True) if tokens else ((), (), ())
            columns = np.array(handles, np.int64), np.array(ids, np.int32)
            logprobs = columns_of(entries)
            self._front_end.deliver(EventBatch(*columns, ends, snapshots, logprobs))

    def _take_snapshots(self) -> list[Snapshot]:
        snapshots = []
        while self.snapshot is not None and not self._asks.empty():
            snapshots.append(self.snapshot(self._asks.get()))
        return snapshots

    def _receive(self, ends: list[Finished | Failure]) -> None:
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Abort):
                request = self.running.pop(message.handle, None)
                if request is None:
                    continue
                if isinstance(message.reason, FinishReason):
                    made = message.output_tokens
                    ends.append(self._finished(request, message.reason, None, made))
                else:
                    usage = self._usage(request, request.made)
                    ends.append(Failure(message.handle, message.reason, "aborted", usage=usage))
                continue
            failure = self.failures.get(message.request_id)
            if failure is not None:
                ends.append(replace(failure, handle=message.handle))
                continue
            script = self.script(message) if callable(self.script) else self.script
            self.running[message.handle] = _Running(message, script)

    def _make_tokens(self, ends: list[Finished | Failure]) -> list[tuple[int, int, Entry | None]]:
        tokens: list[tuple[int, int, Entry | None]] = []
        for _ in range(self.tokens_per_turn):
            if not self.running:
                break
            for handle, request in list(self.running.items()):
                token = request.script[request.made]
                submission = request.submission
                top = submission.top_logprobs
                entry = None if top is None else scripted_logprobs(request.made, token, top)
                tokens.append((handle, token, entry))
                request.made += 1
                if token in submission.stop_ids:
                    end = self._finished(request, FinishReason.STOP, token, request.made)
                elif request.made in (submission.max_tokens, len(request.script)):
                    end = self._finished(request, FinishReason.LENGTH, None, request.made)
                else:
                    continue
                ends.append(end)
                del self.running[handle]
        return tokens

    @staticmethod
    def _finished(
        request: _Running, reason: FinishReason, stop_token: int | None, made: int
    ) -> Finished:
        finish = Finish(reason, stop_token, ScriptedEngine._usage(request, made))
        return Finished(request.submission.handle, finish)

    @staticmethod
    def _usage(request: _Running, made: int) -> RequestUsage:
        return RequestUsage(
            prompt_tokens=len(request.submission.prompt_ids),
            output_tokens=made,
            queue_seconds=0.25,
            first_token_seconds=0.5 if made else None,
            total_seconds=0.75,
            preemptions=1,
            recomputed_tokens=11,
            cached_tokens=2,
        )
