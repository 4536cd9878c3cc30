"""A recorded worker's steps run again: equal, or the first difference is named."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import numpy as np
import pytest

from nanoserve.v1 import worker_pb2
from tests.tiny_llama import tiny_llama
from tests.worker.recorded_steps import (
    FLAGS,
    SIMULATED,
    Player,
    entries,
    replay_process,
    replayed,
    steps_of,
    stub_of,
    write,
)
from tests.worker.running_worker import connect, running_worker, small_geometry
from tests.worker.step_messages import int32, int64, second_step
from tests.worker.worker_process import worker_process
from worker.__main__ import parse, parser
from worker.recording import Entry, RecordingError, RecordingReader
from worker.recording_flags import make_recorders
from worker.replay_report import ReplayReport
from worker.start import make_executor


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three incarnations: the second by Reset, the third by a higher epoch. The first ends in
    a refused step and one that follows it."""
    path = tmp_path_factory.mktemp("recorded") / "steps.bin"
    with worker_process(*SIMULATED, "--record", str(path)) as worker:
        stub = stub_of(worker)
        player = Player(stub, small_geometry(), seed=1)
        player.play(60)
        bad = second_step(player.incarnation, step_id=61, rows=int32(99), query_lens=int32(1))
        after = second_step(player.incarnation, step_id=62)
        player.stream.send(bad, after)
        assert [next(player.stream.call).refusal.reason for _ in range(2)] == [1, 4]
        assert stub.Reset(worker_pb2.ResetRequest(epoch=5)).incarnation != player.incarnation
        Player(stub, small_geometry(), seed=2).play(80)
        Player(stub, small_geometry(), seed=3, epoch=6).play(40)
        assert worker.stop() == 0
    return path


def changed(recording: Path, path: Path, change: object) -> Path:
    """A copy in which `change` may change each message."""
    found = entries(recording)
    for entry in found:
        change(entry)  # type: ignore[operator]
    return write(path, found)


def test_a_recording_is_for_its_owner_only_and_tells_every_step(recording: Path) -> None:
    assert recording.stat().st_mode & 0o777 == 0o600
    found = entries(recording)
    kinds = [entry.WhichOneof("entry") for entry in found]
    assert kinds[:3] == ["start", "incarnation", "step"]
    assert kinds[-1] == "end"
    assert found[-1].end.reason == worker_pb2.RECORDING_END_REASON_STOPPED
    incarnations = [
        entry.incarnation.incarnation for entry in found if entry.HasField("incarnation")
    ]
    assert len(set(incarnations)) == len(incarnations) == 3
    start = found[0].start
    assert start.worker == small_geometry(fingerprint="", head_dim=1).description()
    assert "--vocab-size=1000" in start.arguments
    assert not any("record" in argument for argument in start.arguments)
    ids: dict[int, list[int]] = {}
    for recorded in steps_of(recording):
        ids.setdefault(recorded.step.incarnation, []).append(recorded.step.step_id)
    assert [ids[one] for one in incarnations] == [
        list(range(1, len(ids[one]) + 1)) for one in incarnations
    ]
    assert [len(ids[incarnations[0]]), len(ids[incarnations[2]])] == [62, 40]
    refused = [one.step.step_id for one in steps_of(recording) if one.HasField("refusal")]
    assert refused == [61, 62]


def test_a_replay_without_flags_is_equal_and_shows_the_times(recording: Path) -> None:
    done = replay_process(recording)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    steps = len(steps_of(recording)) - 2
    assert lines[1] == f"incarnations: 3; steps: {steps}; refused: 2"
    assert lines[-1] == "equal: the same tokens, flags and refusals"
    assert re.search(r"^device time +recorded +this run +rows +tokens$", done.stdout, re.M)
    for name in ("median", "p90", "sum"):
        assert re.search(rf"^{name} +\d+\.\d{{3}} ms +\d+\.\d{{3}} ms$", done.stdout, re.M)
    assert len(re.findall(r"^step \d+( +\d+\.\d{3} ms){2} +\d+ +\d+$", done.stdout, re.M)) == 5


def test_a_replay_that_is_over_leaves_no_watchdog(recording: Path) -> None:
    replayed(recording)
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]


def test_one_changed_token_is_found_and_named(recording: Path, tmp_path: Path) -> None:
    found = entries(recording)
    last = [e.incarnation.incarnation for e in found if e.HasField("incarnation")][-1]
    result = next(
        e.result.result
        for e in found
        if e.result.incarnation == last and len(e.result.result.tokens) == 8
    )
    right, other = np.frombuffer(result.tokens, "<i4").tolist()[::-1]
    result.tokens = int32(other, (right + 1) % 1000)
    steps = [
        e.step.step
        for e in found
        if e.step.step.incarnation == last and e.step.step.step_id <= result.step_id
    ]
    sequence = int(np.flatnonzero(np.frombuffer(steps[-1].samples, "u1"))[1])
    row, position = (
        int(np.frombuffer(column, "<i4")[sequence])
        for column in (steps[-1].rows, steps[-1].context_lens)
    )
    request_id = {new.row: new.request_id for step in steps for new in step.new_rows}[row]
    done = replay_process(write(tmp_path / "changed.bin", found))
    assert done.returncode == 1
    assert (
        f"first difference: step {result.step_id}, sequence {sequence} (row {row}, request "
        f"{request_id!r}), position {position}: token {(right + 1) % 1000} was recorded, {right} "
        "comes here\ndifferent tokens: 1 of "
    ) in done.stdout
    assert done.stdout.endswith("\ndifferent\n")


def test_a_changed_prompt_token_changes_that_requests_tokens_only(
    recording: Path, tmp_path: Path
) -> None:
    changed_request: list[str] = []

    def change(entry: Entry) -> None:
        for new_row in entry.step.step.new_rows:
            if not changed_request:
                changed_request.append(new_row.request_id)
                ids = np.frombuffer(new_row.token_ids, "<i4").copy()
                ids[0] = (ids[0] + 1) % 1000
                new_row.token_ids = ids.tobytes()

    report = replayed(changed(recording, tmp_path / "changed.bin", change))
    assert f"request {changed_request[0]!r}" in report.first_difference
    assert 0 < report.different_tokens < report.tokens // 4


def test_a_step_that_is_refused_here_and_was_not_is_a_difference(
    recording: Path, tmp_path: Path
) -> None:
    def change(entry: Entry) -> None:
        if entry.step.step.step_id == 50 and not refused:
            refused.append(entry.step.step.step_id)
            entry.step.step.decode_steps = 9

    refused: list[int] = []
    report = replayed(changed(recording, tmp_path / "changed.bin", change))
    assert report.first_difference.startswith("step 50: ran, and is refused here (decode_steps is")


def test_a_step_that_was_refused_and_runs_here_is_a_difference(
    recording: Path, tmp_path: Path
) -> None:
    def change(entry: Entry) -> None:
        if entry.step.step.step_id == 5:
            entry.step.refusal.message = "no"

    report = replayed(changed(recording, tmp_path / "changed.bin", change))
    assert report.first_difference == "step 5: was refused (no), and runs here"


def test_a_truncated_file_is_replayed_up_to_its_last_whole_message(
    recording: Path, tmp_path: Path
) -> None:
    whole = recording.read_bytes()
    path = tmp_path / "cut.bin"
    half = len(whole) // 2
    path.write_bytes(whole[:half])
    report = replayed(path)
    if not report.cut_off:  # a message happens to end there; none is one byte long
        half -= 1
        path.write_bytes(whole[:half])
        report = replayed(path)
    assert not report.is_different
    cut = re.fullmatch(r"the file is cut off or damaged after (\d+) of (\d+) bytes", report.cut_off)
    assert cut, report.cut_off
    assert f"{cut[0]}: replayed up to the last whole message" in report.lines()
    begins, size = int(cut[1]), int(cut[2])
    assert size == half
    largest = max(entry.ByteSize() for entry in entries(recording))
    assert size - largest - 2 <= begins < size  # and two bytes of its length
    path.write_bytes(whole[:begins])
    again = replayed(path)
    assert (again.cut_off, again.end, again.steps) == ("", None, report.steps)
    assert "the recording has no end: its worker was killed, or runs still" in again.lines()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\x05hello, this is a text\n" * 20, "is no recording of a worker"),
        (b"\xff" * 100, "is no recording of a worker"),
        (b"\x80\x80\x80\x80\x80\x80\x80\x80\x7f" + bytes(50), "is no recording of a worker"),
        (b"\x00" * 50, "is no recording of a worker"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "foreign.bin"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=f"{path} {message}"):
        RecordingReader(path)


def test_another_version_of_the_format_is_refused_naming_both(
    recording: Path, tmp_path: Path
) -> None:
    def change(entry: Entry) -> None:
        if entry.HasField("start"):
            entry.start.version = 2

    with pytest.raises(RecordingError, match="has version 2 of the format, this worker reads 1"):
        RecordingReader(changed(recording, tmp_path / "changed.bin", change))


def test_a_geometry_that_does_not_fit_is_refused_naming_both_values(
    recording: Path,
) -> None:
    done = replay_process(recording, "--num-blocks", 39, "--vocab-size", 999)
    assert done.returncode == 2
    assert "vocab_size is 999, the recording's is 1000" in done.stderr
    assert "num_blocks is 39, the recording's is 40" in done.stderr


def test_a_worker_that_is_started_again_records_beside_the_first_recording(tmp_path: Path) -> None:
    path = tmp_path / "steps.bin"
    path.write_bytes(b"of a worker that crashed")
    with worker_process(*SIMULATED, "--record", str(path)) as worker:
        connect(stub_of(worker))
        assert worker.wait_for(r"in (\S+\.2)$")[1] == f"{path}.2"
        assert worker.stop() == 0
    assert path.read_bytes() == b"of a worker that crashed"
    assert [e.WhichOneof("entry") for e in entries(tmp_path / "steps.bin.2")] == [
        "start",
        "incarnation",
        "end",
    ]


@pytest.mark.parametrize("flag", ["--record", "--dump-dir"])
def test_a_place_that_cannot_be_written_stops_the_start(tmp_path: Path, flag: str) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "below"
    with pytest.raises(ValueError, match=f"{flag}: Not a directory: {path}"):
        make_recorders(parser(), parse(["--simulate", flag, str(path)]))


def test_dump_prompts_without_a_folder_for_dumps_stops_the_start() -> None:
    with pytest.raises(ValueError, match="--dump-prompts is of dumps: give --dump-dir DIR too"):
        make_recorders(parser(), parse(["--simulate", "--dump-prompts"]))


@pytest.mark.parametrize(("answered", "different"), [(0, False), (1, False), (2, True)])
def test_a_crash_is_the_recorded_one_if_its_step_was_not_answered_whole(
    answered: int, different: bool
) -> None:
    report = ReplayReport(worker_pb2.RecordingStart())
    step = worker_pb2.Step(step_id=3, incarnation=7, decode_steps=2)
    report.fatal(step, RuntimeError("no"))
    for sub_step in range(answered):
        result = worker_pb2.StepResult(step_id=3, sub_step=sub_step)
        report.compare(worker_pb2.RecordedResult(incarnation=7, result=result))
    report.end = worker_pb2.RecordingEnd(reason=worker_pb2.RECORDING_END_REASON_CRASHED)
    assert report.is_different is different


def test_a_worker_that_cannot_start_leaves_no_empty_recording(tmp_path: Path) -> None:
    path = tmp_path / "steps.bin"
    with worker_process("--simulate", "--num-blocks", "1", "--record", str(path)) as worker:
        assert worker.wait() == 1
        assert "cannot start: num_blocks is 1" in worker.log
    assert not path.exists()


def test_a_model_on_the_cpu_replays_bit_for_bit(tmp_path: Path) -> None:
    """With penalties and log-probabilities. Its dump too: what was in the pool is computed again in
    other chunks."""
    path, dumps = tmp_path / "steps.bin", tmp_path / "dumps"
    places = ("--record", str(path), "--dump-dir", str(dumps), "--dump-prompts")
    model = ("--model", str(tiny_llama(tmp_path / "model")), "--device", "cpu")
    options = parse([*model, *FLAGS, *places])
    executor = make_executor(options)
    recorders = make_recorders(parser(), options)
    with running_worker(executor, recorders=recorders) as worker, worker.stub() as stub:
        player = Player(stub, executor.geometry, seed=4, asks=True)
        player.play(110)
        player.stream.send(second_step(player.incarnation, step_id=111, slot_mapping=int64(0)))
        assert next(player.stream.call).HasField("refusal")
    report = replayed(path)
    assert (report.steps, report.refusals, report.is_different) == (110, 1, False)
    assert report.tokens > 100
    assert report.logprobs > 300
    (dump,) = dumps.iterdir()
    report = replayed(dump)
    assert (report.steps, report.refusals, report.is_different) == (64, 1, False)
    assert report.synthetic > 0
    assert report.tokens > 50
    assert report.logprobs > 150
