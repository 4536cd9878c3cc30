"""Whole runs, with generator processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from deploy.loadtest.arrivals import Arrivals, Burst, Closed, Open, Ramp, Replay
from deploy.loadtest.fleet import LoadError
from deploy.loadtest.lengths import Fixed
from deploy.loadtest.orders import Counts, Looped
from deploy.loadtest.plan import Content, LoadPlan, Nanoserve
from deploy.loadtest.ramp import Judge
from deploy.loadtest.run import run_load
from deploy.loadtest.timeline import Stage, Timeline
from deploy.loadtest.workload import Workload
from nanoserve.v1 import inference_pb2 as pb
from tests.protos.scripted_server import ScriptedServer
from tests.waiting import SECONDS

SHORT = Content(Fixed(3), Fixed(2))


def answer(
    request: pb.GenerateRequest, _context: grpc.ServicerContext
) -> Iterator[pb.GenerateResponse]:
    yield pb.GenerateResponse(token_ids=[1], text="a")
    usage = pb.Usage(prompt_tokens=len(request.token_ids.ids), output_tokens=2)
    reason = pb.FINISH_REASON_LENGTH
    yield pb.GenerateResponse(token_ids=[2], text="b", finish_reason=reason, usage=usage)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the judge of a ramp, whose own tests say how late an answer may be: each that ended well
    came at once, however busy this machine is."""
    judge = Judge.holds

    def holds(self: Judge, stage: Stage, timelines: Sequence[Timeline]) -> bool | None:
        return judge(self, stage, [replace(t, ended=t.planned) for t in timelines])

    monkeypatch.setattr(Judge, "holds", holds)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(answer) as server:
        yield server


def a_plan(server: ScriptedServer, arrivals: Arrivals, **others: Any) -> LoadPlan:
    values = {"processes": 1, "content": SHORT, "sample_interval": 0.0} | others
    return LoadPlan(Nanoserve(server.address), arrivals, **values)


def test_a_run_has_every_planned_request_whatever_number_of_processes(
    server: ScriptedServer,
) -> None:
    plan = a_plan(server, Open(200.0), requests=60, processes=3, sample_interval=0.01)
    counts: list[Counts] = []
    run = run_load(plan, lambda _, so_far: counts.append(so_far))
    assert [timeline.index for timeline in run.timelines] == list(range(60))
    assert {timeline.status for timeline in run.timelines} == {"OK"}
    workload = Workload(plan, 256)  # as the server's status says
    times = Open(200.0).times(workload.arrival_seed(0), 60, float("inf"))
    start = run.stages[0].start
    for timeline, at in zip(run.timelines, times, strict=True):
        assert timeline.planned == pytest.approx(start + at, abs=3e-6)
        assert timeline.sent is not None
        assert timeline.sent >= timeline.planned - 1e-6
    prompts = {tuple(request.token_ids.ids) for request in server.requests}
    assert prompts == {workload.request(index).prompt for index in range(60)}
    assert run.stages[0].rate == 200.0
    assert run.stages[0].end == max(timeline.ended for timeline in run.timelines)
    assert run.settings["processes"] == 3
    assert run.settings["vocab_size"] == 256
    assert run.settings["server"]["model"] == "tiny"
    assert counts[-1].sent <= 60
    assert run.samples
    assert {sample.free_blocks for sample in run.samples} == {7}
    assert not run.interrupted


def test_warm_up_requests_come_before_and_are_marked(server: ScriptedServer) -> None:
    run = run_load(a_plan(server, Burst(), requests=4, warm_up_requests=2))
    assert [timeline.index for timeline in run.timelines] == [-2, -1, 0, 1, 2, 3]
    assert [timeline.warm_up for timeline in run.timelines] == [True] * 2 + [False] * 4
    start = run.stages[0].start
    assert all(timeline.ended <= start for timeline in run.timelines[:2])
    assert [timeline.planned for timeline in run.timelines[2:]] == [start] * 4
    prompts = [tuple(request.token_ids.ids) for request in server.requests]
    assert len(set(prompts)) == 6


def test_arrivals_of_the_warm_up_s_seconds_are_marked(server: ScriptedServer) -> None:
    plan = a_plan(server, Open(40.0, cv=0), seconds=0.5, warm_up_seconds=0.24)
    run = run_load(plan)
    assert [timeline.warm_up for timeline in run.timelines] == [True] * 10 + [False] * 10
    (stage,) = run.stages
    assert stage.start == pytest.approx(run.timelines[0].planned + 0.24, abs=3e-6)
    assert stage.seconds == pytest.approx(0.26, abs=3e-6)


def test_a_closed_loop_takes_the_planned_number(server: ScriptedServer) -> None:
    run = run_load(a_plan(server, Closed(5), requests=23, processes=2))
    assert [timeline.index for timeline in run.timelines] == list(range(23))
    assert {timeline.status for timeline in run.timelines} == {"OK"}
    assert (run.stages[0].rate, run.stages[0].concurrency) == (None, 5)


def test_a_closed_loop_of_fewer_users_than_processes_takes_the_planned_number(
    server: ScriptedServer,
) -> None:
    run = run_load(a_plan(server, Closed(1), requests=5, processes=2))
    assert [timeline.index for timeline in run.timelines] == list(range(5))


def test_processes_share_a_closed_loop_s_requests_by_their_users() -> None:
    order = Looped(0, 3, np.arange(8), 1.0)
    shares = [order.share(part, 2) for part in range(2)]
    assert [share.users for share in shares] == [1, 2]
    assert [share.conversations.tolist() for share in shares] == [[0, 3, 6], [1, 2, 4, 5, 7]]


def test_a_trace_is_replayed_at_its_times(server: ScriptedServer, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,prompt_len,output_len,group\n5,3,2,a\n5.2,4,2,b\n5.1,5,2,a\n")
    run = run_load(a_plan(server, Replay(speed=2), content=Content(trace=path)))
    start = run.stages[0].start
    planned = [timeline.planned - start for timeline in run.timelines]
    assert planned == pytest.approx([0, 0.05, 0.1], abs=3e-6)
    assert [timeline.group for timeline in run.timelines] == ["a", "a", "b"]
    assert [timeline.prompt_tokens for timeline in run.timelines] == [3, 5, 4]


def test_a_replay_is_measured_until_its_time_is_up_or_its_trace_has_ended(
    server: ScriptedServer, tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,prompt_len,output_len\n0,3,2\n0.2,3,2\n0.4,3,2\n")
    cut = run_load(a_plan(server, Replay(), content=Content(trace=path), seconds=0.3))
    assert len(cut.timelines) == 2
    assert cut.stages[0].seconds == pytest.approx(0.3, abs=3e-6)
    whole = run_load(a_plan(server, Replay(), content=Content(trace=path), seconds=50))
    assert len(whole.timelines) == 3
    assert whole.stages[0].end == whole.timelines[-1].ended


@pytest.mark.usefixtures("soon")
def test_a_ramp_has_a_stage_for_each_rate_and_finds_where_requests_fail(
    server: ScriptedServer,
) -> None:
    plan = a_plan(server, Ramp(20.0, stage_seconds=0.5, cv=0, bisections=1))
    done = threading.Semaphore(12)  # so many are answered, and all later ones refused

    def refuse(
        request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        if not done.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        yield from answer(request, context)

    server.handler = refuse
    run = run_load(plan)
    assert [stage.rate for stage in run.stages][:2] == [20.0, 40.0]
    assert run.stages[2].rate == pytest.approx(800**0.5)
    assert run.knee == 20.0
    by_stage = [[t for t in run.timelines if t.stage == stage] for stage in range(3)]
    assert [len(timelines) for timelines in by_stage] == [10, 20, 15]
    assert [timeline.index for timeline in run.timelines] == list(range(45))
    for stage, timelines in zip(run.stages, by_stage, strict=True):
        assert stage.seconds == pytest.approx(0.5, abs=3e-6)
        assert all(stage.start <= t.planned < stage.end for t in timelines)


@pytest.mark.usefixtures("soon")
def test_a_ramp_has_no_stage_that_its_bound_of_requests_cuts_short(
    server: ScriptedServer,
) -> None:
    run = run_load(a_plan(server, Ramp(10.0, stage_seconds=1.0, cv=0), requests=29))
    assert [stage.rate for stage in run.stages] == [10.0]
    assert len(run.timelines) == 10
    assert run.knee == 10.0


def test_a_ramp_of_the_time_of_one_stage_has_one(server: ScriptedServer) -> None:
    run = run_load(a_plan(server, Ramp(20.0, stage_seconds=0.5, cv=0), seconds=0.5))
    assert [stage.rate for stage in run.stages] == [20.0]


@pytest.mark.parametrize(
    ("ramp", "message"),
    [
        (Ramp(20.0, stage_seconds=0.5, cv=0), "requests is 9, and the first stage of 0.5 s at 20"),
        (Ramp(0.01, stage_seconds=0.5), "no request to judge by: make stage-seconds larger"),
    ],
)
def test_a_ramp_whose_first_stage_cannot_be_judged_is_refused(
    server: ScriptedServer, ramp: Ramp, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_load(a_plan(server, ramp, requests=9))
    assert not server.requests


def test_a_stop_ends_the_run_with_what_there_is(server: ScriptedServer) -> None:
    server.handler = server.hold
    stop = threading.Event()

    def watch(_what: str, _counts: Counts) -> None:
        if server.requests:
            stop.set()

    run = run_load(a_plan(server, Open(5.0, cv=0), requests=1000), watch, stop)
    assert run.interrupted
    statuses = [timeline.status for timeline in run.timelines]
    assert len(statuses) == 1000
    assert statuses[0] == "UNFINISHED"
    assert statuses[-1] == "NOT_DUE"
    assert server.cancelled.wait(SECONDS)


def test_a_server_that_does_not_answer_or_is_not_ready_is_an_error(
    server: ScriptedServer,
) -> None:
    server.status.ready, server.status.reason = False, "no worker yet"
    with pytest.raises(LoadError, match="is not ready: no worker yet"):
        run_load(a_plan(server, Burst(), requests=1))
    plan = LoadPlan(Nanoserve("127.0.0.1:1"), Burst(), requests=1)
    with pytest.raises(LoadError, match=r"no answer from the server at 127\.0\.0\.1:1"):
        run_load(plan)


def test_a_lost_generator_is_an_error_and_none_is_left(server: ScriptedServer) -> None:
    server.handler = server.hold
    killed: list[int] = []

    def kill(_what: str, _counts: Counts) -> None:
        if server.requests and not killed:
            killed.append(generators()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(LoadError, match="ended by itself, with exit status -9"):
        run_load(a_plan(server, Burst(), requests=4, processes=2), kill)
    assert generators() == []


def generators() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "deploy.loadtest.generate" in child.cmdline()
    ]
