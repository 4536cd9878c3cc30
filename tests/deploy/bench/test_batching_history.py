"""What a recording of steps says, on a hand-made one: pool of 5 usable blocks of 4 slots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deploy.bench.batching.history import Occupancy, replay, work_of
from deploy.bench.batching.recording import RecordedRow, RecordedStep, Recording


def step(number: int, **columns) -> RecordedStep:
    """A step that is sent when the one before is answered, and takes a second."""
    columns = {name: columns.get(name, []) for name in RecordedStep.__slots__}
    return RecordedStep(**columns | {"sent": float(number), "answered": number + 1.0})


def two_requests() -> Recording:
    """Static batching: "a" asks for 3 tokens and "b" for 1, which is then held. Prompts of 3
    and 2, 2 blocks reserved for the first."""
    steps = [
        step(
            0,
            new_rows=[RecordedRow(0, "a", 3, 3), RecordedRow(1, "b", 2, 2)],
            table_rows=[0, 1],
            table_counts=[2, 1],
            table_blocks=[1, 2, 5],
            rows=[0, 1],
            query_lens=[3, 2],
            context_lens=[3, 2],
            slot_mapping=[4, 5, 6, 20, 21],
            samples=[True, True],
        ),
        *(
            step(
                number,
                rows=[0, 1],
                query_lens=[1, 1],
                context_lens=[3 + number, 2],
                slot_mapping=[6 + number, 21],
                samples=[True, True],
            )
            for number in (1, 2)
        ),
    ]
    return Recording(num_blocks=6, block_size=4, max_rows=2, steps=steps)


def test_a_recording_is_read_back_as_written(tmp_path: Path) -> None:
    recording = two_requests()
    recording.save(tmp_path / "recording.json.gz")
    assert Recording.load(tmp_path / "recording.json.gz") == recording


def test_a_step_lasts_from_its_sending_or_the_answer_before_it_to_its_answer() -> None:
    times = [(0.0, 2.0), (0.5, 3.0), (7.0, 7.5)]
    columns = {name: [] for name in RecordedStep.__slots__}
    steps = [RecordedStep(**columns | {"sent": s, "answered": a}) for s, a in times]
    assert Recording(2, 16, 1, steps).durations().tolist() == [2.0, 1.0, 0.5]


def test_tables_and_context_lengths_are_those_of_the_moment() -> None:
    seen = [
        [(row, list(held.blocks), held.context_len) for row, held in moment.rows.items()]
        for moment in replay(two_requests())
    ]
    assert seen[0] == [(0, [1, 2], 3), (1, [5], 2)]
    assert seen[2] == [(0, [1, 2], 5), (1, [5], 2)]


def test_a_freed_row_gives_its_blocks_back() -> None:
    recording = two_requests()
    recording.steps.append(step(3, free_rows=[0]))
    *_, last = replay(recording)
    assert list(last.rows) == [1]


def test_tokens_beyond_a_requests_own_are_issued_for_nobody() -> None:
    works = work_of(two_requests(), {"a": 3, "b": 1})
    a, b = works["a"], works["b"]
    assert (a.issued, a.useful, a.own_seconds, a.dead_seconds) == (3, 3, 3.0, 0.0)
    assert (b.issued, b.useful, b.own_seconds, b.dead_seconds) == (3, 1, 1.0, 2.0)
    assert b.spans == [(0.0, 1.0, True), (1.0, 2.0, False), (2.0, 3.0, False)]


def test_recomputing_after_a_preemption_is_no_work_of_ones_own() -> None:
    recording = two_requests()
    recording.steps[:] = [
        *recording.steps[:1],
        step(
            1,
            free_rows=[0],
            rows=[1],
            query_lens=[1],
            context_lens=[3],
            slot_mapping=[22],
            samples=[True],
        ),
        step(
            2,
            new_rows=[RecordedRow(0, "a", 3, 4)],
            table_rows=[0],
            table_counts=[1],
            table_blocks=[1],
            rows=[0],
            query_lens=[2],
            context_lens=[2],
            slot_mapping=[4, 5],
            samples=[False],
        ),
        step(
            3,
            rows=[0],
            query_lens=[2],
            context_lens=[4],
            slot_mapping=[6, 7],
            samples=[True],
        ),
    ]
    work = work_of(recording, {"a": 3, "b": 2})["a"]
    assert (work.admissions, work.useful, work.own_seconds, work.dead_seconds) == (2, 2, 2.0, 0.0)


def test_occupancy_tells_written_blocks_from_reserved_ones() -> None:
    seen = Occupancy.of(two_requests())
    assert seen.usable == 5
    assert seen.blocks.tolist() == [[2, 1]] * 3
    assert seen.written.tolist() == [[1, 1], [1, 1], [2, 1]]
    np.testing.assert_array_equal(seen.starts, [0.0, 1.0, 2.0])


def test_a_request_that_is_not_asked_about_is_left_out() -> None:
    assert list(work_of(two_requests(), {"a": 3})) == ["a"]


def test_a_table_for_an_unknown_row_is_an_error() -> None:
    recording = two_requests()
    recording.steps.append(step(3, free_rows=[7]))
    with pytest.raises(KeyError):
        list(replay(recording))
