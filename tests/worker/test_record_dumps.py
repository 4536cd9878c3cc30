"""What is left of the last steps before one that was refused, or that ended the worker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest

from nanoserve.v1 import worker_pb2
from tests.worker.recorded_steps import (
    SIMULATED,
    Player,
    entries,
    replay_process,
    replayed,
    steps_of,
    stub_of,
    write,
)
from tests.worker.running_worker import running_worker, small_geometry
from tests.worker.step_messages import int32, int64, second_step
from tests.worker.toy_scheduler import ToyRequest
from tests.worker.worker_process import WorkerProcess, worker_process
from worker.__main__ import parse, parser
from worker.dump_folder import DumpFolder
from worker.geometry import Geometry
from worker.ledger import Ledger
from worker.recompute import recompute
from worker.recording import Entry
from worker.recording_flags import make_recorders
from worker.row_history import Context
from worker.simulate import SimulatedExecutor
from worker.simulated_tokens import expected_tokens
from worker.start import make_executor

GEOMETRY = small_geometry()
CRASH = 7  # a token that neither prompts nor outputs have until the test wants it
NAME = r"steps-\d{8}T\d{6}\.\d{6}Z-refused\.bin"


def flags(folder: Path, *more: str) -> tuple[str, ...]:
    return (*SIMULATED, "--dump-dir", str(folder), *more)


def refused(player: Player) -> worker_pb2.Refusal:
    """Of the next step, in which a row has a token id below 0."""
    step = second_step(player.incarnation, step_id=player.scheduler.step_id + 1)
    row = player.scheduler.running[0].row
    assert row is not None
    step.free_rows = int32(row)
    new = worker_pb2.NewRow(row=row, request_id="bad", token_ids=int32(1, -5, 2), prompt_len=3)
    step.new_rows.append(new)
    return player.stream.ask(step).refusal


@dataclass(frozen=True)
class Kept:
    """A dump after 100 steps and a refused one."""

    path: Path
    refusal: worker_pb2.Refusal
    log: str


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """With its token ids."""
    folder = tmp_path_factory.mktemp("dumps") / "made"
    with worker_process(*flags(folder, "--dump-prompts")) as worker:
        player = Player(stub_of(worker), GEOMETRY, seed=5)
        player.play(100)
        refusal = refused(player)
        assert worker.stop() == 0
    (path,) = folder.iterdir()
    return Kept(path, refusal, worker.log)


def test_a_refused_step_leaves_a_dump_that_replays_to_the_same_refusal(kept: Kept) -> None:
    dump = kept.path
    assert re.fullmatch(NAME, dump.name)
    assert dump.stat().st_mode & 0o777 == 0o600
    assert dump.parent.stat().st_mode & 0o777 == 0o700
    assert f"the last 64 steps are kept: python -m worker replay {dump}" in kept.log
    steps = steps_of(dump)
    recorded = [one.step.step_id for one in steps if not one.synthetic]
    assert recorded == list(range(37, 102))
    assert steps[-1].refusal == kept.refusal
    assert kept.refusal.request_id == "bad"
    synthetic = [one.step for one in steps if one.synthetic]
    assert [step.step_id for step in synthetic] == list(range(37 - len(synthetic), 37))
    assert len(synthetic[0].new_rows) == len({new.row for new in synthetic[0].new_rows}) > 2
    assert not any(step.new_rows for step in synthetic[1:])
    report = replayed(dump)
    assert (report.steps, report.refusals, report.is_different) == (64, 1, False)
    assert report.tokens > 50


def test_a_dump_with_one_token_changed_in_what_came_before_is_different(
    kept: Kept, tmp_path: Path
) -> None:
    found = entries(kept.path)
    new_row = next(e.step.step.new_rows[0] for e in found if e.step.synthetic)
    ids = np.frombuffer(new_row.token_ids, "<i4").copy()
    ids[0] = (ids[0] + 1) % 1000
    new_row.token_ids = ids.tobytes()
    report = replayed(write(tmp_path / "changed.bin", found))
    assert f"request {new_row.request_id!r}" in report.first_difference


def test_token_ids_are_zeros_unless_asked_for_and_the_replay_says_so(tmp_path: Path) -> None:
    options = parse([*flags(tmp_path)])
    recorders = make_recorders(parser(), options)
    executor = make_executor(options)
    with running_worker(executor, recorders=recorders) as worker, worker.stub() as stub:
        player = Player(stub, executor.geometry, seed=5)
        player.play(100)
        refusal = refused(player)
    (dump,) = tmp_path.iterdir()
    found = entries(dump)
    assert found[0].start.token_ids_zeroed
    for entry in found:
        assert not any(np.frombuffer(entry.result.result.tokens, "<i4"))
        for new_row in entry.step.step.new_rows:
            ids = np.frombuffer(new_row.token_ids, "<i4").tolist()
            assert set(ids) <= ({0, -5} if new_row.request_id == "bad" else {0})
    assert "token_ids[1] is -5" in refusal.message
    assert steps_of(dump)[-1].refusal == refusal, "-5 is no token, and stays"
    done = replay_process(dump)
    assert done.returncode == 0, done.stdout
    assert "token ids are zeroed: checks and times can be compared, tokens cannot" in done.stdout
    assert done.stdout.endswith("equal, as far as checks tell: tokens were not compared\n")


def crash(worker: WorkerProcess) -> int:
    """The worker's exit status after a step that computes the token CRASH; the steps before are
    answered, those of one request that begins with it are not."""
    player = Player(stub_of(worker), GEOMETRY, seed=6)
    for request in player.requests:
        request.prompt = [token if token != CRASH else 8 for token in request.prompt]
    player.play(80)
    player.scheduler.waiting.insert(0, ToyRequest("the one", [CRASH], 5))
    with pytest.raises(grpc.RpcError):
        player.play()
    return worker.wait()


def test_a_crash_leaves_a_dump_that_crashes_the_replay_at_the_same_step(tmp_path: Path) -> None:
    more = ("--crash-tokens", str(CRASH), "--dump-prompts", "--avoid-tokens", str(CRASH))
    record = tmp_path / "steps.bin"
    with worker_process(*flags(tmp_path / "dumps", *more, "--record", str(record))) as worker:
        assert crash(worker) == 1
    (dump,) = (tmp_path / "dumps").iterdir()
    assert "-crashed.bin" in dump.name
    crashed = next(
        one.step.step_id
        for one in steps_of(record)
        if any(new.request_id == "the one" for new in one.step.new_rows)
    )
    for path in (record, dump):
        assert entries(path)[-1].end.message == "RuntimeError: a crash token was computed"
        done = replay_process(path)
        assert done.returncode == 0, done.stdout + done.stderr
        fatal = re.search(r"^step (\d+) is fatal: RuntimeError: a crash token", done.stdout, re.M)
        assert fatal, done.stdout
        assert int(fatal[1]) >= crashed
        assert done.stdout.endswith("refusals, and the same end\n")
    well = replayed(dump, "--crash-tokens", "")
    assert well.is_different
    assert "another end: the worker crashed, and does not here" in well.lines()


def test_a_crash_that_was_none_is_a_difference(kept: Kept) -> None:
    results = [e.result.result.tokens for e in entries(kept.path) if e.HasField("result")]
    token = next(int(np.frombuffer(data, "<i4")[0]) for data in results if data)
    report = replayed(kept.path, "--crash-tokens", str(token))
    (line,) = [line for line in report.lines() if line.startswith("another end")]
    assert re.fullmatch(r"another end: step \d+ is fatal here, and was not", line)


def test_a_device_that_hangs_leaves_a_dump(tmp_path: Path) -> None:
    more = ("--step-ms", "300000", "--step-timeout", "1", "--dump-prompts")
    for number in range(5):
        folder = tmp_path / f"{number}"
        with worker_process(*flags(folder, *more)) as worker:
            player = Player(stub_of(worker), GEOMETRY, seed=5)
            player.send()
            assert worker.wait() == 1
        if "Timeout (" not in worker.log:
            break  # otherwise it stood still for a second, and the timer in C ended it
    (dump,) = folder.iterdir()
    assert "-hung.bin" in dump.name
    done = replay_process(dump)
    assert done.returncode == 0, done.stdout
    assert "step 1 is fatal: StepTimeout: a step was not done within" in done.stdout


def test_a_folder_holds_five_dumps_and_the_oldest_go_first(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    folder = DumpFolder(tmp_path)
    paths = [folder.write("refused", [Entry()]) for _ in range(7)]
    assert sorted(tmp_path.glob("*.bin")) == paths[2:]
    assert (tmp_path / "notes.txt").exists()


def test_a_folder_holds_so_many_bytes_and_a_larger_dump_is_not_written(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path, max_bytes=1000)
    entry = Entry(end=worker_pb2.RecordingEnd(message="x" * 400))
    paths = [folder.write("crashed", [entry]) for _ in range(3)]
    assert sorted(tmp_path.iterdir()) == paths[1:]
    with pytest.raises(ValueError, match=r"it has 12\d\d bytes, must be at most 1000"):
        folder.write("crashed", [entry] * 3)
    assert sorted(tmp_path.iterdir()) == paths[1:]


def context(
    row: int, tokens: list[int], blocks: list[int], in_pool: int, **more: object
) -> Context:
    new_row = worker_pb2.NewRow(
        row=row,
        request_id=f"r{row}",
        token_ids=int32(*tokens),
        prompt_len=len(tokens),
        block_ids=int32(*blocks),
        **more,  # type: ignore[arg-type]
    )
    return Context(new_row, in_pool)


class Pool:
    """A simulated worker that runs steps in an empty pool."""

    def __init__(self, geometry: Geometry) -> None:
        self.executor = SimulatedExecutor(geometry)
        self.ledger = Ledger(geometry, check_slots=True)

    def run(self, step: worker_pb2.Step) -> list[int]:
        (pending,) = self.executor.launch(self.ledger.admit(step))
        return pending.wait().tokens.tolist()


def decode(row: int, context_len: int, slot: int) -> worker_pb2.Step:
    return worker_pb2.Step(
        rows=int32(row),
        query_lens=int32(1),
        context_lens=int32(context_len),
        slot_mapping=int64(slot),
        samples=b"\1",
    )


def test_rows_that_share_blocks_are_computed_again_as_they_were() -> None:
    """Rows 0 and 1 share their first two blocks; row 2 has the same tokens elsewhere; row 3 has
    nothing in the pool."""
    shared = list(range(100, 108))
    one, two = [*shared, 1, 2, 3], [*shared, 4, 5]
    live = [
        context(0, one, [5, 6, 7], 10),
        context(1, two, [5, 6, 8], 9),
        context(2, one, [9, 10, 11], 10),
        context(3, [1, 2], [], 0),
    ]
    steps = recompute(GEOMETRY, live, (), incarnation=1, last_step=50)
    assert [step.step_id for step in steps] == list(range(51 - len(steps), 51))
    assert [new.tokens_in_pool for new in steps[0].new_rows] == [0, 8, 0, 0]
    pool = Pool(GEOMETRY)
    for step in steps:
        assert pool.run(step) == []
    assert pool.run(decode(0, 11, 7 * 4 + 2)) == expected_tokens(one, 1, 1000)
    assert pool.run(decode(1, 10, 8 * 4 + 1)) == expected_tokens(two, 1, 1000)
    assert pool.run(decode(2, 11, 11 * 4 + 2)) == expected_tokens(one, 1, 1000)


def test_contexts_longer_than_a_step_are_computed_in_several() -> None:
    tokens = [list(range(row, row + 50)) for row in range(3)]
    live = [
        context(row, tokens[row], list(range(1 + 13 * row, 14 + 13 * row)), 49) for row in range(3)
    ]
    steps = recompute(GEOMETRY, live, (), incarnation=1, last_step=2)
    assert [len(step.slot_mapping) // 8 for step in steps] == [64, 64, 19]
    assert [step.step_id for step in steps] == [0, 1, 2]
    pool = Pool(GEOMETRY)
    for step in steps:
        pool.run(step)
    for row in range(3):
        slot = (1 + 13 * row + 12) * 4 + 1
        assert pool.run(decode(row, 50, slot)) == expected_tokens(tokens[row], 1, 1000)


def test_a_prefix_that_a_later_step_finds_in_the_pool_is_computed_too() -> None:
    """Its request was gone before the dump begins. Block 6 has what the earlier finder needs."""
    first, second = list(range(200, 209)), [*range(200, 204), *range(300, 305)]
    later = [
        worker_pb2.Step(new_rows=[context(4, first, [5, 6], 8, tokens_in_pool=8).new_row]),
        worker_pb2.Step(new_rows=[context(4, second, [5, 6], 8, tokens_in_pool=8).new_row]),
    ]
    live = [context(4, [1, 2, 3], [9], 3)]
    steps = recompute(GEOMETRY, live, later, incarnation=1, last_step=9)
    pool = Pool(GEOMETRY)
    for step in steps:
        pool.run(step)
    assert pool.ledger.live_rows == 1
    finder = decode(4, 9, 7 * 4)
    finder.free_rows = int32(4)
    finder.new_rows.add().CopyFrom(later[0].new_rows[0])
    finder.table_rows, finder.table_starts = int32(4), int32(0)
    finder.table_counts, finder.table_blocks = int32(1), int32(7)
    assert pool.run(finder) == expected_tokens(first, 1, 1000)
