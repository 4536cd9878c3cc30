"""What a session tells of its steps, on its way to a file: through a bounded queue to a thread of
its own, so that no step ever waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, Protocol

from nanoserve.v1 import worker_pb2
from worker.answer import Answer
from worker.geometry import Geometry
from worker.refusal import StepRefused
from worker.watchdog import StepTimeout

log = logging.getLogger(__name__)

# Of what waits to be taken, and once more of what is being taken.
MAX_QUEUED_BYTES = 32 << 20

# Between the first event of a bunch and the turn that takes it. A turn for each event would
# cost the threads that serve steps the interpreter's lock each time.
_GATHER_SECONDS = 0.02

_EVENT_BYTES = 200  # of an event itself, besides its messages

# A worker that is to end waits so long for its recordings: for a machine that is busy for a second
# or two, which is when steps hang, and not for a disk that is stuck.
_FATAL_SECONDS = 5.0
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Began:
    """An incarnation; its pool is empty."""

    incarnation: int
    size: int = _EVENT_BYTES


@dataclass(frozen=True, slots=True)
class Admitted:
    """A step that is going to run."""

    step: worker_pb2.Step
    unanswered: int
    answer: Answer
    size: int


@dataclass(frozen=True, slots=True)
class Answered:
    """One repetition's result."""

    incarnation: int
    result: worker_pb2.StepResult
    size: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A step that is not run."""

    step: worker_pb2.Step
    unanswered: int
    refusal: StepRefused
    size: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The queue was full: what comes before the next incarnation is missing."""


Event = Began | Admitted | Answered | Refused | Lost


class SinkEnded(Exception):
    """A sink takes no more; the text says why."""


class Sink(Protocol):
    """Where events go. All is called on one thread at a time; OSError and SinkEnded end it, and
    the worker goes on."""

    name: str  # for the log: "the recording"
    takes_results: bool

    def start(self, geometry: Geometry) -> None: ...

    def take(self, events: Sequence[Event]) -> None: ...

    def end(self, end: worker_pb2.RecordingEnd) -> None:
        """The last call, after a failure too."""
        ...


class Recorder:
    """The queue and the thread of one sink."""

    def __init__(self, sink: Sink, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        self.sink = sink
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._bytes = 0
        self._lost = False  # from an overflow until the next incarnation, nothing is queued
        self._failed = False
        self._end: worker_pb2.RecordingEnd | None = None
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self, geometry: Geometry) -> None:
        """Before the first `put`."""
        self._guarded(self.sink.start, geometry)
        self._thread.start()

    def put(self, event: Began | Admitted | Answered | Refused) -> None:
        """Any thread; never waits for the sink."""
        with self._lock:
            if self._failed or (self._lost and not isinstance(event, Began)):
                return
            self._lost = self._bytes + event.size > self._max_bytes
            self._events.append(Lost() if self._lost else event)
            self._bytes += 0 if self._lost else event.size
        if not self._wake.is_set():
            self._wake.set()

    def finish(self, end: worker_pb2.RecordingEnd) -> None:
        """Ends the sink after what is queued; the first end counts."""
        if self._end is None:
            self._end = end
        self._closing.set()
        self._wake.set()
        if self._thread.ident is None:  # the worker ends before it was ready
            self._guarded(self.sink.end, end)

    def join(self, deadline: float) -> None:
        """Waits for the end, until `deadline` (monotonic) at most."""
        if self._thread.ident is None:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.error("%s is not whole: the disk takes too long", self.sink.name)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(_GATHER_SECONDS)
            self._wake.clear()
            self._turn()
        self._turn()  # what came before `finish`
        if self._end is not None:
            self._guarded(self.sink.end, self._end)

    def _turn(self) -> None:
        with self._lock:
            events, self._events, self._bytes = self._events, [], 0
        if not self._failed:
            self._guarded(self.sink.take, events)

    def _guarded(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            call(*arguments)
        except (OSError, SinkEnded) as error:
            self._fail(error)
        except Exception as error:  # a recording never ends a worker
            self._fail(error)
            log.debug("where %s failed", self.sink.name, exc_info=error)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        log.error("%s ends: %s; the worker goes on", self.sink.name, error)


class Recorders:
    """Those of a worker, often none. Any thread may tell them what happens."""

    def __init__(self, *recorders: Recorder) -> None:
        self._all = recorders
        self._with_results = [one for one in recorders if one.sink.takes_results]

    def start(self, geometry: Geometry) -> None:
        for recorder in self._all:
            recorder.start(geometry)

    def began(self, incarnation: int) -> None:
        self._put(Began(incarnation))

    def admitted(self, step: worker_pb2.Step, unanswered: int, answer: Answer) -> None:
        """Before the step is launched: one that crashes the worker is told of as well."""
        if not self._all:
            return
        if self._with_results:
            answer.on_result = partial(self._answered, step.incarnation)
        self._put(Admitted(step, unanswered, answer, step.ByteSize() + _EVENT_BYTES))

    def refused(self, step: worker_pb2.Step, unanswered: int, refusal: StepRefused) -> None:
        if self._all:
            self._put(Refused(step, unanswered, refusal, step.ByteSize() + _EVENT_BYTES))

    def _answered(self, incarnation: int, result: worker_pb2.StepResult) -> None:
        columns = len(result.tokens) + len(result.logprob_ids)  # half of what there is, or more
        event = Answered(incarnation, result, 2 * columns + _EVENT_BYTES)
        for recorder in self._with_results:
            recorder.put(event)

    def _put(self, event: Began | Admitted | Refused) -> None:
        for recorder in self._all:
            recorder.put(event)

    def stop(self) -> None:
        stopped = worker_pb2.RECORDING_END_REASON_STOPPED
        self._close(stopped, "the worker was stopped", _STOP_SECONDS)

    def before(
        self, exit_on: Callable[[BaseException], NoReturn]
    ) -> Callable[[BaseException], NoReturn]:
        """`exit_on`, called with what is fatal, but not before the recordings have it, or some
        seconds are over."""

        def end(error: BaseException) -> NoReturn:
            hung = isinstance(error, StepTimeout)
            crashed = worker_pb2.RECORDING_END_REASON_CRASHED
            reason = worker_pb2.RECORDING_END_REASON_HUNG if hung else crashed
            try:
                self._close(reason, f"{type(error).__name__}: {error}", _FATAL_SECONDS)
            finally:
                exit_on(error)

        return end

    def _close(self, reason: worker_pb2.RecordingEndReason, message: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for recorder in self._all:
            recorder.finish(worker_pb2.RecordingEnd(reason=reason, message=message))
        for recorder in self._all:
            recorder.join(deadline)
