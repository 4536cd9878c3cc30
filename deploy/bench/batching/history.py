"""What a recording says: who held which block when, and what each request's row computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from deploy.bench.batching.recording import RecordedStep, Recording


@dataclass(slots=True)
class HeldRow:
    """A row as a step leaves it."""

    request_id: str
    prompt_len: int
    blocks: list[int] = field(default_factory=list)
    context_len: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """The books while a step runs. `rows` is good until the next moment only."""

    step: RecordedStep
    rows: dict[int, HeldRow]


def replay(recording: Recording) -> Iterator[Moment]:
    """One moment for each step, in order."""
    rows: dict[int, HeldRow] = {}
    for step in recording.steps:
        for row in step.free_rows:
            del rows[row]
        for new in step.new_rows:
            rows[new.row] = HeldRow(new.request_id, new.prompt_len)
        start = 0
        for row, count in zip(step.table_rows, step.table_counts, strict=True):
            rows[row].blocks += step.table_blocks[start : start + count]
            start += count
        for row, context_len in zip(step.rows, step.context_lens, strict=True):
            rows[row].context_len = context_len
        yield Moment(step, rows)


@dataclass(slots=True)
class Work:
    """What rows computed for one request. Times in seconds of steps that it was in."""

    issued: int = 0  # tokens sampled
    useful: int = 0  # of those, its output
    own_seconds: float = 0.0  # until its last useful token, steps that gave it none left out
    dead_seconds: float = 0.0  # after that
    admissions: int = 0
    spans: list[tuple[float, float, bool]] = field(default_factory=list)  # start, end, useful


def work_of(recording: Recording, output_lens: dict[str, int]) -> dict[str, Work]:
    """By request id. `output_lens`: tokens that each was asked for and got."""
    works = {request_id: Work() for request_id in output_lens}
    durations = recording.durations()
    for moment, seconds in zip(replay(recording), durations, strict=True):
        step = moment.step
        for new in step.new_rows:
            if new.request_id in works:
                works[new.request_id].admissions += 1
        for row, samples in zip(step.rows, step.samples, strict=True):
            request_id = moment.rows[row].request_id
            if (work := works.get(request_id)) is None:
                continue  # a warm-up request
            useful = work.useful < output_lens[request_id]
            if not useful:
                work.dead_seconds += seconds
            elif samples or not work.useful:
                work.own_seconds += seconds
            work.issued += samples
            work.useful += samples and useful
            work.spans.append((step.answered - seconds, step.answered, useful))
    return works


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks held by each row while each step ran. Shapes: n steps."""

    starts: np.ndarray  # float64 [n], seconds since the first step
    ends: np.ndarray  # float64 [n]
    blocks: np.ndarray  # int64 [n, max_rows]
    written: np.ndarray  # int64 [n, max_rows]: those with a token in them
    usable: int

    @classmethod
    def of(cls, recording: Recording) -> Occupancy:
        size, shape = recording.block_size, (len(recording.steps), recording.max_rows)
        blocks, written = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for i, moment in enumerate(replay(recording)):
            for row, held in moment.rows.items():
                blocks[i, row] = len(held.blocks)
                written[i, row] = -(-held.context_len // size)
        ends = np.array([step.answered for step in recording.steps])
        starts = ends - recording.durations()
        first = starts[0]
        return cls(starts - first, ends - first, blocks, written, recording.num_blocks - 1)
