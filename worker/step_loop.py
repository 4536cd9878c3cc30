"""The thread that owns the executor: it loads the model, then checks and launches steps."""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from nanoserve.v1 import worker_pb2
from worker.answer import Answer
from worker.executor import Executor
from worker.geometry import Geometry
from worker.stream import StepStream, StreamEnd


@dataclass(frozen=True, slots=True)
class _Arrival:
    stream: StepStream
    step: worker_pb2.Step | None  # None: the stream's client sends no more
    arrived_ns: int = 0
    unanswered: int = 0


class StepLoop:
    """Runs steps in the order of `submit`, which may be called from any thread.

    One thread does everything with the executor, loading included: torch keeps a pool of
    threads and a device context per calling thread. `on_ready` gets the geometry after the
    warm-up; `on_fatal` gets any exception, after which nothing runs any more.
    """

    def __init__(
        self,
        make_executor: Callable[[], Executor],
        on_ready: Callable[[Geometry], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._make_executor = make_executor
        self._on_ready = on_ready
        self.on_fatal = on_fatal
        self._arrivals: queue.SimpleQueue[_Arrival | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="step-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after what was submitted."""
        self._arrivals.put(None)
        self._thread.join()

    def submit(
        self, stream: StepStream, step: worker_pb2.Step, arrived_ns: int, unanswered: int
    ) -> None:
        self._arrivals.put(_Arrival(stream, step, arrived_ns, unanswered))

    def submit_end(self, stream: StepStream) -> None:
        """Ends the stream once the steps before this are answered."""
        self._arrivals.put(_Arrival(stream, None))

    def _run(self) -> None:
        try:
            executor = self._make_executor()
            executor.warm_up()
            # What is alive now stays: a full collection need not look at it again.
            gc.collect()
            gc.freeze()
            self._on_ready(executor.geometry)
            while (arrival := self._arrivals.get()) is not None:
                try:
                    self._take(arrival, executor)
                except Exception as error:
                    arrival.stream.fail(error)
                    raise
        except BaseException as error:
            self.on_fatal(error)

    def _take(self, arrival: _Arrival, executor: Executor) -> None:
        stream = arrival.stream
        if stream.ended:
            return  # what was not launched is sent again on the next stream
        if arrival.step is None:
            stream.end(StreamEnd())
            return
        answer, launch = stream.session.admit(arrival.step, arrival.arrived_ns, arrival.unanswered)
        if launch and isinstance(answer, Answer):
            answer.pendings = executor.launch(answer.step)
            spent_ns = time.monotonic_ns() - answer.started_ns
            answer.input_ns = spent_ns - sum(pending.inline_ns for pending in answer.pendings)
        stream.put(answer)
