"""One Execute stream: steps in, answers out.

Three threads share a step's way. The stream's reader hands it to the step loop, which is
the only thread that touches the executor; the gRPC handler waits for the device and yields
the answer. Answers are in the order of the steps because both queues are.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from nanoserve.v1 import worker_pb2
from worker.answer import Answer, RefusedAnswer
from worker.session import Session

if TYPE_CHECKING:
    from worker.step_loop import StepLoop

log = logging.getLogger(__name__)

# A worker that is to end waits so long until its last words have left, on a busy machine too.
_LAST_WORDS_SECONDS = 2.0
# Of an error's text, in characters: gRPC takes 8 KiB, of which a character may be 12 bytes.
_MOST_WORDS = 500


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Why no further answer comes. OK after a half-close by the client."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""


def step_failed(error: Exception) -> StreamEnd:
    """The last words of a worker that a step is fatal to."""
    what = " ".join(str(error).split())[:_MOST_WORDS]
    words = f"a step failed: {type(error).__name__}: {what}"
    return StreamEnd(grpc.StatusCode.DATA_LOSS, words)


class StepStream:
    """The open stream of a session. Any thread may end it; the first end counts."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.ended = False
        self._is_over = threading.Event()  # the client has its end, or is gone
        self._answers: queue.SimpleQueue[Answer | RefusedAnswer | StreamEnd] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unanswered = 0
        self._last_busy = time.monotonic()

    def read(self, steps: Iterator[worker_pb2.Step], loop: StepLoop) -> None:
        """The reader's thread: ends with the client's side of the stream."""
        try:
            for step in steps:
                arrived_ns = time.monotonic_ns()
                with self._lock:
                    self._unanswered += 1
                    unanswered = self._unanswered
                loop.submit(self, step, arrived_ns, unanswered)
        except Exception as error:  # grpc raises a bare Exception once the call is over
            log.debug("the step stream's reader ends: %s", error)
        loop.submit_end(self)

    def put(self, answer: Answer | RefusedAnswer) -> None:
        self._answers.put(answer)

    def end(self, end: StreamEnd) -> None:
        self.ended = True
        self._answers.put(end)

    def fail(self, error: Exception) -> None:
        """Ends it after the answers before, and waits a moment until that has left."""
        self.end(step_failed(error))
        self.wait_until_over()

    def over(self) -> None:
        """gRPC's call is over, for whatever reason."""
        self.end(StreamEnd(grpc.StatusCode.CANCELLED, "the scheduler went away"))
        self._is_over.set()

    def wait_until_over(self) -> None:
        self._is_over.wait(_LAST_WORDS_SECONDS)

    def answers(self) -> Generator[worker_pb2.StepResult, None, StreamEnd]:
        """The handler's thread: results as the device has them, then why they end."""
        while not isinstance(answer := self._answers.get(), StreamEnd):
            for result in answer.results():
                if result.sub_step + 1 == answer.repetitions:
                    self._answered()
                yield result
        return answer

    def _answered(self) -> None:
        """Counts before the answer leaves, so that the count is never above the client's."""
        with self._lock:
            self._unanswered -= 1
            self._last_busy = time.monotonic()

    def idle_seconds(self) -> float:
        """How long no step has been unanswered; 0 while one is."""
        with self._lock:
            return 0.0 if self._unanswered else time.monotonic() - self._last_busy
