"""Recording never holds up a step: what cannot be written is given up, and said."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nanoserve.v1 import worker_pb2
from tests.waiting import SECONDS
from tests.worker.recorded_steps import SIMULATED, Player, entries, replayed, stub_of
from tests.worker.running_worker import Stream, connect, running_worker, small_geometry
from tests.worker.step_messages import first_step, int32, new_row, second_step
from tests.worker.worker_process import worker_process
from worker.dump import Dump
from worker.dump_folder import DumpFolder
from worker.geometry import Geometry
from worker.record_file import RecordFile
from worker.recorder import Began, Event, Lost, Recorder, Recorders, Refused
from worker.recording import RecordingReader
from worker.refusal import StepRefused

STOPPED = worker_pb2.RecordingEnd(reason=worker_pb2.RECORDING_END_REASON_STOPPED)


class StuckDisk:
    """A Sink whose first turn waits until it is let go."""

    name = "the stuck one"
    takes_results = True

    def __init__(self) -> None:
        self.taken: list[Event] = []
        self.stuck, self.go = threading.Event(), threading.Event()
        self.ends: list[worker_pb2.RecordingEnd] = []

    def start(self, geometry: Geometry) -> None: ...

    def take(self, events: Sequence[Event]) -> None:
        self.stuck.set()
        assert self.go.wait(30)
        self.taken += events

    def end(self, end: worker_pb2.RecordingEnd) -> None:
        self.ends.append(end)


def test_events_that_a_stuck_disk_leaves_no_room_for_are_lost_up_to_the_next_incarnation() -> None:
    sink = StuckDisk()
    recorder = Recorder(sink, max_bytes=1000)
    recorder.start(small_geometry())
    recorder.put(Began(1))
    assert sink.stuck.wait(30)
    steps = [Refused(worker_pb2.Step(step_id=n), 1, StepRefused("no"), 400) for n in range(9)]
    for step in steps:
        recorder.put(step)  # room is for two
    sink.go.set()
    deadline = time.monotonic() + 30
    while len(sink.taken) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    recorder.put(Began(9))
    recorder.finish(STOPPED)
    recorder.join(time.monotonic() + 30)
    assert sink.taken == [Began(1), *steps[:2], Lost(), Began(9)]
    assert sink.ends == [STOPPED]


def test_a_worker_that_ends_does_not_wait_for_a_stuck_disk(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = StuckDisk()
    recorder = Recorder(sink)
    recorder.start(small_geometry())
    recorder.put(Began(1))
    assert sink.stuck.wait(30)
    recorder.finish(STOPPED)
    recorder.join(time.monotonic())
    assert "the stuck one is not whole: the disk takes too long" in caplog.text
    sink.go.set()


def test_what_is_fatal_ends_the_worker_once_the_recording_has_it() -> None:
    sink, ended = StuckDisk(), threading.Event()
    recorder = Recorder(sink)
    recorder.start(small_geometry())
    recorder.put(Began(1))
    assert sink.stuck.wait(30)
    end = Recorders(recorder).before(lambda _: ended.set())  # type: ignore[arg-type, return-value]
    threading.Thread(target=end, args=(RuntimeError("no"),)).start()
    assert not ended.wait(0.2)
    sink.go.set()
    assert ended.wait(SECONDS)
    assert [one.message for one in sink.ends] == ["RuntimeError: no"]
    assert sink.taken == [Began(1)]


def test_a_recording_that_falls_behind_ends_and_the_steps_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "steps.bin"
    recorders = Recorders(Recorder(RecordFile(path, []), max_bytes=450))
    with running_worker(recorders=recorders) as worker, worker.stub() as stub:
        Player(stub, small_geometry(), seed=1).play(30)
        assert worker.fatal == []
    ends = "the recording ends: the disk is too slow for the steps; the worker goes on"
    assert ends in caplog.text
    found = entries(path)
    assert found[1].HasField("incarnation")
    assert found[-1].end.reason == worker_pb2.RECORDING_END_REASON_FELL_BEHIND


def test_a_full_disk_ends_the_recording_and_not_the_worker(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk's; bytecode would be cut off by it too."""
    path = tmp_path / "steps.bin"
    limited = ("bash", "-c", 'ulimit -f 16; exec env PYTHONDONTWRITEBYTECODE=1 "$@"', "bash")
    with worker_process(*SIMULATED, "--record", str(path), prefix=limited) as worker:
        player = Player(stub_of(worker), small_geometry(), seed=1)
        player.play(100)
        worker.wait_for(r"ERROR .*the recording ends: .*File too large; the worker goes on")
        player.play(20)
        assert worker.stop() == 0
    assert path.stat().st_size == 16384
    report = replayed(path)
    assert report.cut_off
    assert 5 < report.steps < 100
    assert not report.is_different


def test_dumps_are_made_again_from_the_incarnation_after_lost_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dump = Dump(DumpFolder(tmp_path), [], prompts=True)
    recorders = Recorders(Recorder(dump, max_bytes=2000))
    with running_worker(recorders=recorders) as worker, worker.stub() as stub:
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        large = [new_row(row, f"r{row}", range(60)) for row in range(8)]
        stream.ask(worker_pb2.Step(step_id=1, incarnation=incarnation, new_rows=large))
        bad = second_step(incarnation, rows=int32(99))
        assert stream.ask(bad).HasField("refusal")
        incarnation = stub.Reset(worker_pb2.ResetRequest(epoch=5)).incarnation
        stream = Stream(stub, 5)
        stream.ask(first_step(incarnation))
        assert stream.ask(second_step(incarnation, rows=int32(99))).HasField("refusal")
    (path,) = tmp_path.iterdir()
    assert [e.WhichOneof("entry") for e in RecordingReader(path)] == [
        *("incarnation", "step", "result", "step", "end")
    ]
    assert "no dumps until the next incarnation: steps came too fast" in caplog.text
