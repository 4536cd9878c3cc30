"""Penalties and log-probabilities in recordings, dumps and replays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nanoserve.v1 import worker_pb2
from tests.worker.asking import asked_of, penalties_of
from tests.worker.recorded_steps import SIMULATED, Player, entries, replayed, write
from tests.worker.running_worker import running_worker
from tests.worker.step_messages import int64, second_step
from worker.__main__ import parse, parser
from worker.recording import Entry
from worker.recording_flags import make_recorders
from worker.replay_report import ReplayReport
from worker.start import make_executor


def record(*flags: str) -> None:
    """110 steps and a refused one."""
    options = parse(list(flags))
    executor, recorders = make_executor(options), make_recorders(parser(), options)
    with running_worker(executor, recorders=recorders) as worker, worker.stub() as stub:
        player = Player(stub, executor.geometry, seed=4, asks=True)
        player.play(110)
        player.stream.send(second_step(player.incarnation, step_id=111, slot_mapping=int64(0)))
        assert next(player.stream.call).HasField("refusal")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The whole, and the dump, of a simulated worker."""
    folder = tmp_path_factory.mktemp("recorded")
    path, dumps = folder / "steps.bin", folder / "dumps"
    record(*SIMULATED, "--record", str(path), "--dump-dir", str(dumps), "--dump-prompts")
    (dump,) = dumps.iterdir()
    return path, dump


def test_both_replay_equal_and_say_how_near_log_probabilities_are(
    recorded: tuple[Path, Path],
) -> None:
    for path in recorded:
        report = replayed(path)
        assert report.logprobs > 300
        last = list(report.lines())[-1]
        assert last == (
            "equal: the same tokens, flags and refusals, "
            f"{report.logprobs} log-probabilities within 0.001"
        )


def test_a_dumps_rows_come_again_with_what_they_asked_for(recorded: tuple[Path, Path]) -> None:
    rows = [
        row
        for entry in entries(recorded[1])
        if entry.step.synthetic
        for row in entry.step.step.new_rows
        if row.prompt_len < len(row.token_ids) // 4
    ]
    assert len(rows) > 1
    for row in rows:
        top = asked_of(row.request_id).get("top_logprobs")
        wanted = worker_pb2.SamplingParams(**penalties_of(row.request_id))
        wanted.temperature, wanted.seed = row.sampling.temperature, row.sampling.seed
        assert row.sampling == wanted
        assert row.HasField("top_logprobs") == (top is not None)
        assert row.top_logprobs == (top or 0)


def test_a_dump_that_forgets_where_an_output_begins_is_different(
    recorded: tuple[Path, Path], tmp_path: Path
) -> None:
    def change(entry: Entry) -> None:
        for row in entry.step.step.new_rows:
            if entry.step.synthetic:
                row.prompt_len = len(row.token_ids) // 4

    report = changed(recorded[1], tmp_path, change)
    assert report.different_tokens > 0


def test_a_changed_log_probability_is_found_and_counted(
    recorded: tuple[Path, Path], tmp_path: Path
) -> None:
    steps: list[str] = []

    def change(entry: Entry) -> None:
        result = entry.result.result
        if result.logprobs and len(steps) < 2:
            values = np.frombuffer(result.logprobs, "<f4").copy()
            steps.append(
                f"step {result.step_id}: log-probability 0 of {len(values)} was "
                f"{values[0] - np.float32(0.01)}, is {values[0]} here"
            )
            values[0] -= 0.01
            result.logprobs = values.tobytes()

    report = changed(recorded[0], tmp_path, change)
    assert report.first_difference == steps[0]
    assert report.different_tokens == 0
    assert f"different log-probabilities: 2 of {report.logprobs}" in report.lines()


def test_log_probabilities_that_are_missing_are_a_difference(
    recorded: tuple[Path, Path], tmp_path: Path
) -> None:
    def change(entry: Entry) -> None:
        for row in entry.step.step.new_rows:
            row.ClearField("top_logprobs")

    report = changed(recorded[0], tmp_path, change)
    assert " log-probabilities of " in report.first_difference
    assert report.first_difference.endswith(", has 0 of 0 here")


def changed(path: Path, folder: Path, change: object) -> ReplayReport:
    """The replay of a copy in which `change` may change each message."""
    found = entries(path)
    for entry in found:
        change(entry)  # type: ignore[operator]
    return replayed(write(folder / "changed.bin", found))


def test_a_dump_without_prompts_tells_of_no_token_and_no_probability(tmp_path: Path) -> None:
    record(*SIMULATED, "--dump-dir", str(tmp_path))
    (dump,) = tmp_path.iterdir()
    results = [entry.result.result for entry in entries(dump) if entry.HasField("result")]
    assert sum(len(result.logprobs) for result in results) > 300
    for result in results:
        assert len(result.logprob_ids) == len(result.logprobs)
        assert not result.logprob_ids.strip(b"\0")
        assert not result.logprobs.strip(b"\0")
    assert not replayed(dump).is_different
