"""`--dump-dir DIR`: the last steps before one that was refused, or that ended the worker."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from nanoserve.v1 import worker_pb2
from worker.dump_folder import DumpFolder
from worker.geometry import Geometry
from worker.recompute import recompute
from worker.recorder import Admitted, Began, Event, Refused
from worker.recording import FATAL_ENDS, Entry, incarnation_entry, start_entry
from worker.row_history import RowHistory
from worker.token_zeroing import zeroed_result, zeroed_step

log = logging.getLogger(__name__)

LAST_STEPS = 64
# Of those steps' messages. Fewer are kept where long prompts come with them.
_MAX_BYTES = 32 << 20

# Another step was bad, or this one came from before an incarnation: nothing to learn from it.
_OF_NO_INTEREST = (
    worker_pb2.REFUSAL_REASON_WRONG_INCARNATION,
    worker_pb2.REFUSAL_REASON_FOLLOWS_REFUSED,
)


class Dump:
    """A Sink (worker/recorder.py) that keeps the last steps in memory, and of what came before
    what the rows hold."""

    name = "keeping the last steps for dumps"
    takes_results = False  # an answer has its own

    def __init__(self, folder: DumpFolder, arguments: Sequence[str], *, prompts: bool) -> None:
        self._folder = folder
        self._arguments = arguments
        self._prompts = prompts
        self._last: deque[Admitted] = deque()
        self._bytes = 0
        self._incarnation: int | None = None  # None: of steps that were lost nothing is known
        self._before = 0  # id of the step before the last ones

    def start(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._most_steps = max(LAST_STEPS, 2 * geometry.max_steps_in_flight)

    def take(self, events: Sequence[Event]) -> None:
        try:
            self._take(events)
        except BaseException:
            self._incarnation = None  # what is held here is half a step
            raise

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Began(incarnation):
                    self._begin(incarnation)
                case Admitted() if self._incarnation is not None:
                    self._add(event)
                case Refused() if self._incarnation is not None:
                    if event.refusal.reason not in _OF_NO_INTEREST:
                        self._refused(event)
                case Admitted() | Refused():
                    pass
                case _:
                    self._begin(None)
                    log.warning("no dumps until the next incarnation: steps came too fast")

    def end(self, end: worker_pb2.RecordingEnd) -> None:
        if (kind := FATAL_ENDS.get(end.reason)) and self._last and self._incarnation is not None:
            results = [one.answer.made for one in self._last]
            self._write(kind, [*self._steps(results), Entry(end=end)])

    def _begin(self, incarnation: int | None) -> None:
        self._incarnation = incarnation
        self._last.clear()
        self._bytes = self._before = 0
        self._rows = RowHistory(self._geometry)

    def _add(self, event: Admitted) -> None:
        self._last.append(event)
        self._bytes += event.size
        # Those in flight stay: what they sample is not known yet.
        least = 2 * self._geometry.max_steps_in_flight
        while len(self._last) > self._most_steps or (
            self._bytes > _MAX_BYTES and len(self._last) > least
        ):
            first = self._last.popleft()
            self._bytes -= first.size
            self._rows.apply(first.step, first.answer.step, first.answer.results())
            self._before = first.step.step_id

    def _refused(self, event: Refused) -> None:
        # Waits for those in flight: they were launched before this step was looked at.
        results = [list(one.answer.results()) for one in self._last]
        refused = worker_pb2.RecordedStep(
            step=self._shown(event.step),
            unanswered=event.unanswered,
            refusal=event.refusal.message(),
        )
        reason = worker_pb2.RECORDING_END_REASON_REFUSED
        text = f"step {event.step.step_id} was refused: {event.refusal}"
        end = worker_pb2.RecordingEnd(reason=reason, message=text)
        self._write("refused", [*self._steps(results), Entry(step=refused), Entry(end=end)])

    def _steps(self, results: Iterable[Sequence[worker_pb2.StepResult]]) -> Iterator[Entry]:
        """The last steps, after others that compute what was in the pool before them."""
        assert self._incarnation is not None
        yield start_entry(self._geometry, self._arguments, zeroed=not self._prompts)
        again = recompute(
            self._geometry,
            self._rows.contexts(),
            (one.step for one in self._last) if self._before else (),
            self._incarnation,
            self._before,
        )
        yield incarnation_entry(self._incarnation, self._before - len(again))
        for step in again:
            yield Entry(
                step=worker_pb2.RecordedStep(step=self._shown(step), unanswered=1, synthetic=True)
            )
        for one, made in zip(self._last, results, strict=True):
            step = self._shown(one.step)
            yield Entry(step=worker_pb2.RecordedStep(step=step, unanswered=one.unanswered))
            for result in made:
                shown = result if self._prompts else zeroed_result(result, self._geometry)
                yield Entry(
                    result=worker_pb2.RecordedResult(incarnation=self._incarnation, result=shown)
                )

    def _shown(self, step: worker_pb2.Step) -> worker_pb2.Step:
        return step if self._prompts else zeroed_step(step, self._geometry)

    def _write(self, reason: str, entries: Sequence[Entry]) -> None:
        try:
            path = self._folder.write(reason, entries)
        except (OSError, ValueError) as error:
            log.error("the last steps are not kept in %s: %s", self._folder.path, error)
            return
        log.error("the last %d steps are kept: python -m worker replay %s", len(self._last), path)
