"""`--record FILE`: every step, with its results, for as long as the worker runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from nanoserve.v1 import worker_pb2
from worker.geometry import Geometry
from worker.recorder import Admitted, Answered, Began, Event, Lost, Refused, SinkEnded
from worker.recording import Entry, RecordingFile, incarnation_entry, start_entry

log = logging.getLogger(__name__)


class RecordFile:
    """A Sink (worker/recorder.py). The file is made at once, so that a folder that cannot be
    written stops the start. Raises OSError."""

    name = "the recording"
    takes_results = True

    def __init__(self, path: Path, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._file = _unused(path)
        self._whole = True

    @property
    def path(self) -> Path:
        return self._file.path

    def start(self, geometry: Geometry) -> None:
        self._write([start_entry(geometry, self._arguments)])
        log.info("recording steps, prompts among them, in %s", self._file.path)

    def take(self, events: Sequence[Event]) -> None:
        for i, event in enumerate(events):
            if isinstance(event, Lost):
                text = "the disk is too slow for the steps"
                reason = worker_pb2.RECORDING_END_REASON_FELL_BEHIND
                end = Entry(end=worker_pb2.RecordingEnd(reason=reason, message=text))
                self._write([*map(_entry, events[:i]), end])
                self._whole = False
                raise SinkEnded(text)
        self._write([_entry(event) for event in events])

    def end(self, end: worker_pb2.RecordingEnd) -> None:
        try:
            if self._whole and self._file.size:
                self._write([Entry(end=end)])
        finally:
            self._file.close()
            if not self._file.size:  # the worker was never ready
                self._file.path.unlink(missing_ok=True)

    def _write(self, entries: Sequence[Entry]) -> None:
        try:
            self._file.write(entries)
        except OSError:
            self._whole = False
            raise


def _unused(path: Path) -> RecordingFile:
    """FILE, or FILE.2, FILE.3, ... if there is one: a worker that a supervisor started again
    must not overwrite what led to its predecessor's end, nor fail for it."""
    for number in count(1):
        try:
            return RecordingFile(path.with_name(f"{path.name}.{number}") if number > 1 else path)
        except FileExistsError:
            continue
    raise AssertionError("count() does not end")


def _entry(event: Event) -> Entry:
    match event:
        case Began(incarnation):
            return incarnation_entry(incarnation)
        case Admitted(step, unanswered):
            return Entry(step=worker_pb2.RecordedStep(step=step, unanswered=unanswered))
        case Refused(step, unanswered, refusal):
            refused = worker_pb2.RecordedStep(
                step=step, unanswered=unanswered, refusal=refusal.message()
            )
            return Entry(step=refused)
        case Answered(incarnation, result):
            return Entry(result=worker_pb2.RecordedResult(incarnation=incarnation, result=result))
    raise TypeError(f"no entry for {event}")
