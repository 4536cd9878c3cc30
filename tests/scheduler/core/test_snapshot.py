from __future__ import annotations

from scheduler.core.front_end import (
    CACHED_BLOCK,
    FREE_BLOCK,
    SCRATCH_OWNER,
    Snapshot,
    SnapshotRequest,
)
from tests.scheduler.core.fake_worker import FakeWorker
from tests.scheduler.core.harness import Harness


def snapshot(harness: Harness, block_map: bool = True) -> Snapshot:
    harness.engine.ask_snapshot(SnapshotRequest(7, block_map))
    harness.turn()
    (taken,) = harness.front_end.snapshots
    harness.front_end.snapshots.clear()
    return taken


def test_a_snapshot_tells_every_rows_progress() -> None:
    harness = Harness(FakeWorker(block_size=4, max_rows=2), pipeline_depth=1)
    harness.submit([1, 2, 3, 4, 5], 6, name="first")
    harness.submit([8, 9], 4, name="second")
    harness.submit([8], 4, name="waits")
    harness.turn()
    harness.now = 2.0
    harness.step()  # both have one token; the next step is in flight
    taken = snapshot(harness)
    assert (taken.handle, taken.request_ids) == (7, ["first", "second"])
    assert taken.rows.tolist() == [0, 1]
    assert taken.prompt_tokens.tolist() == [5, 2]
    assert taken.computed_tokens.tolist() == [6, 3]
    assert taken.output_tokens.tolist() == [1, 1]
    assert taken.max_tokens.tolist() == [6, 4]
    assert taken.blocks.tolist() == [2, 1]
    assert taken.seconds.tolist() == [2.0, 2.0]


def test_the_block_map_names_the_row_of_each_block() -> None:
    harness = Harness(FakeWorker(num_blocks=8, block_size=4, max_rows=2))
    harness.submit([1, 2, 3, 4, 5], 3)
    harness.submit([8, 9], 2)
    harness.turn()
    owners = snapshot(harness).block_owners
    assert owners is not None
    assert owners[0] == SCRATCH_OWNER
    for row in (0, 1):
        table = harness.books.tables.table(row)
        assert sorted(table.tolist()) == (owners == row).nonzero()[0].tolist()
    assert (owners == FREE_BLOCK).sum() == harness.books.allocator.num_free
    first = int(harness.books.tables.table(0)[0])
    harness.run()
    owners = snapshot(harness).block_owners
    assert owners is not None
    # The first full block of the longer request stays, the rest is free.
    expected = [SCRATCH_OWNER] + [FREE_BLOCK] * 7
    expected[first] = CACHED_BLOCK
    assert owners.tolist() == expected


def test_the_block_map_comes_only_when_asked_for() -> None:
    assert snapshot(Harness(), block_map=False).block_owners is None


def test_a_snapshot_counts_the_latencies_so_far_and_is_not_changed_by_later_ones() -> None:
    harness = Harness(FakeWorker(), pipeline_depth=1)
    harness.submit([1, 2], 3)
    harness.turn()
    harness.now = 0.25
    harness.step()
    early = snapshot(harness)
    harness.now = 0.75
    harness.step()
    late = snapshot(harness)
    assert [(s.first_token.sum, s.first_token.counts.sum()) for s in (early, late)] == [
        (0.25, 1),
        (0.25, 1),
    ]
    assert [(s.inter_token.sum, s.inter_token.counts.sum()) for s in (early, late)] == [
        (0.0, 0),
        (0.5, 1),
    ]
    (bucket,) = late.inter_token.counts.nonzero()[0]
    assert late.inter_token.bounds[bucket] == 0.5


def test_before_the_first_worker_a_snapshot_is_empty() -> None:
    taken = snapshot(Harness(connect=False))
    assert (taken.request_ids, taken.rows.tolist(), taken.block_owners) == ([], [], None)
