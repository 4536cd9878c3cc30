"""`python -m worker replay FILE`: runs recorded steps again, without scheduler and clients."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterable

from nanoserve.v1 import worker_pb2
from worker.answer import Answer
from worker.geometry import Geometry
from worker.log import start_logging
from worker.recording import Entry, RecordingError, RecordingReader
from worker.recording_flags import recorded_options
from worker.replay_report import ReplayReport, StepRun
from worker.session import Session
from worker.start import StartError, make_watched_executor
from worker.watchdog import StepTimeout

EQUAL, DIFFERENT, UNUSABLE = 0, 1, 2


def main(arguments: list[str], flags: argparse.ArgumentParser) -> int:
    """The exit status: 0 if all was as recorded, 1 if something was not, 2 for a file or flags
    that cannot be replayed."""
    path = flags.parse_args(arguments).recording
    try:
        reader = RecordingReader(path)
        options = recorded_options(flags, arguments, reader.start)
        start_logging("debug" if options.debug else "info", options.log_format)
        if not options.simulate and options.model is None:
            raise RecordingError(f"{path} does not tell its worker's model: give --model DIR")
        replay = Replay(reader, options)
    except (OSError, ValueError, RecordingError, StartError) as error:
        print(f"{flags.prog}: {error}", file=sys.stderr)
        return UNUSABLE
    replay.run()
    return replay.conclude()


def check_fits(recorded: worker_pb2.ConnectResponse, geometry: Geometry) -> None:
    """Raises RecordingError, naming both values of each that differ."""
    ours = geometry.description()
    wrong = []
    if "simulated" in (recorded.device, ours.device) and recorded.device != ours.device:
        wrong.append(f"device is {ours.device}, the recording's is {recorded.device}")
    for part in ("model", "pool", "limits"):
        theirs, own = getattr(recorded, part), getattr(ours, part)
        for field in theirs.DESCRIPTOR.fields:
            was, here = getattr(theirs, field.name), getattr(own, field.name)
            if was != here:
                wrong.append(f"{field.name} is {here}, the recording's is {was}")
    if wrong:
        raise RecordingError("this worker is not like the recorded one: " + "; ".join(wrong))


class Replay:
    """One run of a recording. Raises StartError, and RecordingError for a worker that the
    recording does not fit."""

    def __init__(self, reader: RecordingReader, options: argparse.Namespace) -> None:
        self._reader = reader
        self._entries = iter(reader)
        self.report = ReplayReport(reader.start)
        self._executor = make_watched_executor(options, self._hung)
        check_fits(reader.start.worker, self._executor.geometry)
        self._executor.warm_up()
        self._session = Session(
            self._executor.geometry, check_slots=options.debug or options.simulate
        )
        self._request_ids = [""] * self._executor.geometry.max_rows
        self._running: worker_pb2.Step | None = None  # while the executor has it

    def run(self) -> None:
        """Up to the file's end, or to a step that is fatal."""
        try:
            self._run()
        finally:
            self._executor.close()

    def _run(self) -> None:
        for entry in self._entries:
            match entry.WhichOneof("entry"):
                case "incarnation":
                    begins = entry.incarnation
                    self._session.replay(begins.incarnation, begins.last_step)
                    self.report.incarnations += 1
                case "step":
                    try:
                        self._step(entry.step)
                    except Exception as error:
                        if self._running is None:
                            raise
                        logging.getLogger(__name__).error("a step was fatal", exc_info=error)
                        self._fatal(error)
                        return
                case _:
                    self._compare([entry])

    def conclude(self) -> int:
        """Prints the report; the exit status."""
        self.report.cut_off = self._reader.cut_off
        for line in self.report.lines():
            print(line, flush=True)
        return DIFFERENT if self.report.is_different else EQUAL

    def _step(self, recorded: worker_pb2.RecordedStep) -> None:
        step = recorded.step
        answer, launch = self._session.admit(step, time.monotonic_ns(), recorded.unanswered)
        if not launch or not isinstance(answer, Answer):
            (refused,) = answer.results()
            self.report.refused(recorded, refused.refusal)
            return
        for new_row in step.new_rows:
            self._request_ids[new_row.row] = new_row.request_id
        self._running = step
        answer.pendings = self._executor.launch(answer.step)
        results = list(answer.results())
        self._running = None
        request_ids = [self._request_ids[row] for row in answer.step.rows.tolist()]
        self.report.ran(recorded, StepRun(answer.step, request_ids, results))

    def _compare(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.HasField("result"):
                self.report.compare(entry.result)
            elif entry.HasField("end"):
                self.report.end = entry.end

    def _fatal(self, error: BaseException) -> None:
        """The step that runs was the last; what was recorded of it comes after it."""
        assert self._running is not None
        self.report.fatal(self._running, error)
        self._compare(self._entries)

    def _hung(self, error: StepTimeout) -> None:
        """On the watchdog's thread: the main one waits for a step that does not end."""
        self._fatal(error)
        os._exit(self.conclude())
