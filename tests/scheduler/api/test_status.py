"""GetStatus: from memory, and with what the engine tells on request."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest

from nanoserve.v1.inference_pb2 import (
    GetStatusRequest,
    GetStatusResponse,
    LatencyHistogram,
    RunningRow,
)
from scheduler.api import shared_snapshots, status
from scheduler.api.service import InferenceService, ServedModel
from scheduler.api.shared_snapshots import ANSWER_SECONDS
from scheduler.core.front_end import SCRATCH_OWNER, LatencyCounts, Snapshot, SnapshotRequest
from tests.scheduler.api.scripted_engine import ScriptedEngine
from tests.waiting import SECONDS

ROWS = [
    RunningRow(
        row=2,
        request_id="one",
        prompt_tokens=8,
        computed_tokens=5,
        output_tokens=0,
        max_tokens=4,
        blocks=1,
        running_seconds=0.5,
    ),
    RunningRow(
        row=5,
        request_id="two",
        prompt_tokens=20,
        computed_tokens=33,
        output_tokens=13,
        max_tokens=90,
        blocks=3,
        running_seconds=7.25,
    ),
]
OWNERS = [SCRATCH_OWNER, 5, -1, 2, 5, 5]
FIRST_TOKEN = LatencyHistogram(bounds_seconds=[0.1, 1], counts=[1, 2, 0], sum_seconds=1.5)
INTER_TOKEN = LatencyHistogram(bounds_seconds=[0.01], counts=[7, 1], sum_seconds=0.25)


def counts(histogram: LatencyHistogram) -> LatencyCounts:
    bounds, values = histogram.bounds_seconds, histogram.counts
    return LatencyCounts(np.array(bounds), np.array(values), histogram.sum_seconds)


def two_rows(asked: SnapshotRequest) -> Snapshot:
    def column(name: str, dtype: type = np.int32) -> np.ndarray:
        return np.array([getattr(row, name) for row in ROWS], dtype)

    return Snapshot(
        handle=asked.handle,
        request_ids=[row.request_id for row in ROWS],
        rows=column("row"),
        prompt_tokens=column("prompt_tokens"),
        computed_tokens=column("computed_tokens"),
        output_tokens=column("output_tokens"),
        max_tokens=column("max_tokens"),
        blocks=column("blocks"),
        seconds=column("running_seconds", np.float64),
        first_token=counts(FIRST_TOKEN),
        inter_token=counts(INTER_TOKEN),
        block_owners=np.array(OWNERS, np.int32) if asked.block_map else None,
    )


def engine(**options: object) -> ScriptedEngine:
    return ScriptedEngine([2], snapshot=two_rows, **options)


async def status_of(served, **include: bool) -> GetStatusResponse:
    return await served.stub.GetStatus(GetStatusRequest(**include), timeout=SECONDS)


def carried(response: GetStatusResponse) -> dict[str, object]:
    """What of the fields that come on request is there."""
    parts = {
        "rows": list(response.rows),
        "block_owners": list(response.block_owners),
        "time_to_first_token": response.time_to_first_token,
        "inter_token_latency": response.inter_token_latency,
    }
    return {name: value for name, value in parts.items() if value not in ([], LatencyHistogram())}


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ({}, {}),
        ({"include_rows": True}, {"rows": ROWS}),
        ({"include_block_map": True}, {"block_owners": OWNERS}),
        (
            {"include_latencies": True},
            {"time_to_first_token": FIRST_TOKEN, "inter_token_latency": INTER_TOKEN},
        ),
    ],
)
async def test_a_status_carries_what_was_asked_for_and_nothing_else(serve, include, expected):
    served = await serve(engine())
    response = await status_of(served, **include)
    assert carried(response) == expected
    assert response.missing_reason == ""
    # Without a wish the engine's loop is not troubled at all.
    assert len(served.engine.snapshots_asked) == (1 if include else 0)


async def test_the_engine_is_asked_once_for_all_who_ask_at_about_the_same_time(serve, monkeypatch):
    monkeypatch.setattr(shared_snapshots, "FRESH_SECONDS", 60.0)
    served = await serve(engine())
    include = {"include_rows": True, "include_block_map": True}
    answers = await asyncio.gather(*(status_of(served, **include) for _ in range(40)))
    answers.append(await status_of(served, include_rows=True))
    assert all(list(answer.rows) == ROWS for answer in answers)
    assert [list(answer.block_owners) for answer in answers] == [OWNERS] * 40 + [[]]
    assert len(served.engine.snapshots_asked) == 1


async def test_a_snapshot_without_a_block_map_does_not_serve_who_wants_one(serve, monkeypatch):
    monkeypatch.setattr(shared_snapshots, "FRESH_SECONDS", 60.0)
    served = await serve(engine())
    assert list((await status_of(served, include_rows=True)).rows) == ROWS
    assert list((await status_of(served, include_block_map=True)).block_owners) == OWNERS
    assert [asked.block_map for asked in served.engine.snapshots_asked] == [False, True]
    handles = [asked.handle for asked in served.engine.snapshots_asked]
    assert len(set(handles)) == 2


async def test_an_old_snapshot_is_not_given_out(serve, monkeypatch):
    monkeypatch.setattr(shared_snapshots, "FRESH_SECONDS", 0.0)
    served = await serve(engine())
    for _ in range(3):
        await status_of(served, include_rows=True)
    assert len(served.engine.snapshots_asked) == 3


async def test_an_engine_that_hangs_is_not_waited_for_and_not_asked_again_and_again(
    serve, monkeypatch
):
    monkeypatch.setattr(shared_snapshots, "ANSWER_SECONDS", 0.05)
    served = await serve(engine())
    served.engine.freeze()
    for _ in range(5):
        response = await status_of(served, include_rows=True, include_latencies=True)
        assert carried(response) == {}
        assert response.missing_reason.startswith("the engine did not answer within")
        assert (response.model, response.steps, response.usable_blocks) == ("tiny", 4, 2048)
    assert len(served.engine.snapshots_asked) == 1
    monkeypatch.setattr(shared_snapshots, "ANSWER_SECONDS", SECONDS)
    served.engine.thaw()
    response = await status_of(served, include_rows=True)
    assert (list(response.rows), response.missing_reason) == (ROWS, "")


async def test_the_wait_for_a_hanging_engine_is_a_second_as_the_contract_says(serve, monkeypatch):
    monkeypatch.setattr(shared_snapshots, "ANSWER_SECONDS", ANSWER_SECONDS)
    served = await serve(engine())
    served.engine.freeze()
    response = await status_of(served, include_rows=True)
    assert response.missing_reason == "the engine did not answer within 1 s"


async def test_a_loop_that_has_stood_still_too_long_is_not_ready(serve, monkeypatch):
    monkeypatch.setattr(status, "STUCK_SECONDS", 0.1)
    served = await serve(engine())
    served.engine.freeze()
    async with asyncio.timeout(SECONDS):
        while (response := await status_of(served)).ready:
            await asyncio.sleep(0.01)
    assert re.fullmatch(r"the engine's loop has stood still for \d+ s", response.reason)


async def test_before_the_first_worker_there_is_no_block_map_and_the_status_says_why(serve):
    def nothing(asked: SnapshotRequest) -> Snapshot:
        none = np.empty(0, np.int32)
        latencies = counts(FIRST_TOKEN), counts(INTER_TOKEN)
        return Snapshot(asked.handle, [], none, none, none, none, none, none, none, *latencies)

    served = await serve(ScriptedEngine([2], limits=None, snapshot=nothing))
    response = await status_of(served, include_rows=True, include_latencies=True)
    assert carried(response).keys() == {"time_to_first_token", "inter_token_latency"}
    assert response.missing_reason == ""
    response = await status_of(served, include_block_map=True)
    assert (carried(response), response.missing_reason) == ({}, "no worker has connected yet")
    assert response.reason == "no worker has connected yet"


async def test_an_answer_nobody_asked_for_is_ignored():
    service = InferenceService(ServedModel("tiny", None, frozenset()), engine(), 1.0)
    service._status.deliver(two_rows(SnapshotRequest(12345)))
    assert service._status._snapshots._last == {}
