"""Load on a gRPC server: each request ends as what it was."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from deploy.loadtest.arrivals import Burst, Closed
from deploy.loadtest.generator import Generator
from deploy.loadtest.lengths import Fixed
from deploy.loadtest.orders import Looped
from deploy.loadtest.plan import Content, LoadPlan, Nanoserve
from deploy.loadtest.target import Failed
from deploy.loadtest.workload import Workload
from nanoserve.v1 import inference_pb2 as pb
from nanoserve.v1.inference_pb2_grpc import add_InferenceServiceServicer_to_server
from tests.deploy.loadtest.running import VOCAB, at_once, carry_out
from tests.protos.scripted_server import ScriptedServer, fail
from tests.waiting import SECONDS, until

Responses = Iterator[pb.GenerateResponse]


def a_plan(address: str, **others: Any) -> LoadPlan:
    content = others.pop("content", Content(Fixed(3), Fixed(4)))
    arrivals = others.pop("arrivals", Burst())
    return LoadPlan(Nanoserve(address), arrivals, content, **({"requests": 100} | others))


def end(request: pb.GenerateRequest, tokens: int) -> pb.GenerateResponse:
    prompt = len(request.token_ids.ids) or 5
    usage = pb.Usage(prompt_tokens=prompt, output_tokens=tokens, cached_tokens=prompt - 1)
    reason = pb.FINISH_REASON_LENGTH
    return pb.GenerateResponse(finish_reason=reason, usage=usage)


def count_up(request: pb.GenerateRequest, _context: grpc.ServicerContext) -> Responses:
    """Ids 1, 2, ... to max_tokens, the first without text, the last two in one message."""
    yield pb.GenerateResponse(token_ids=[1])
    for i in range(2, request.max_tokens - 1):
        yield pb.GenerateResponse(token_ids=[i], text=f"{i} ")
    yield pb.GenerateResponse(token_ids=[request.max_tokens - 1, request.max_tokens], text="x")
    yield end(request, request.max_tokens)


async def test_ids_text_and_usage_of_every_message_are_recorded() -> None:
    with ScriptedServer(count_up) as server:
        plan = a_plan(server.address, temperature=0.5)
        timelines = await carry_out(plan, at_once(7))
    assert [timeline.index for timeline in timelines] == list(range(7))
    for timeline in timelines:
        assert timeline.status == "OK"
        assert timeline.token_counts.tolist() == [1, 1, 2, 0]
        assert timeline.has_text.tolist() == [False, True, True, False]
        assert (timeline.prompt_tokens, timeline.output_tokens) == (3, 4)
        assert timeline.cached_tokens == 2
        assert timeline.planned == 0
        assert timeline.sent is not None
        assert 0 <= timeline.sent <= timeline.times[0]
        assert (timeline.times[1:] >= timeline.times[:-1]).all()
        assert timeline.times[-1] <= timeline.ended
    sent = {request.request_id: request for request in server.requests}
    assert sorted(sent) == sorted(timeline.request_id for timeline in timelines)
    assert {request.max_tokens for request in sent.values()} == {4}
    assert {request.temperature for request in sent.values()} == {0.5}
    assert all(request.ignore_eos for request in sent.values())
    assert len({tuple(request.token_ids.ids) for request in sent.values()}) == 7


async def test_a_body_is_merged_into_every_request() -> None:
    with ScriptedServer(count_up) as server:
        body = {"top_logprobs": 0, "repetition_penalty": 1.5, "stop_token_ids": [3, 4]}
        plan = LoadPlan(
            Nanoserve(server.address, body=body), Burst(), Content(Fixed(3), Fixed(4)), requests=5
        )
        timelines = await carry_out(plan, at_once(5))
    assert [timeline.status for timeline in timelines] == ["OK"] * 5
    for request in server.requests:
        assert request.HasField("top_logprobs")
        assert (request.top_logprobs, request.repetition_penalty) == (0, 1.5)
        assert list(request.stop_token_ids) == [3, 4]
        assert len(request.token_ids.ids) == 3


async def test_a_message_s_time_is_when_it_came() -> None:
    """The server sends the next message only when the tool has recorded the last."""
    sent_at: list[float] = []
    go = threading.Semaphore(0)

    def stepwise(request: pb.GenerateRequest, _context: grpc.ServicerContext) -> Responses:
        for i in range(3):
            assert go.acquire(timeout=20)
            sent_at.append(time.monotonic())
            yield pb.GenerateResponse(token_ids=[i])
        assert go.acquire(timeout=20)
        sent_at.append(time.monotonic())
        yield end(request, 3)

    seen: list[float] = []

    async def lead(generator: Generator) -> None:
        for i in range(4):
            seen.append(time.monotonic())
            go.release()
            record = generator._records[0]
            await until(lambda i=i, r=record: len(r.times) == i + 1, "the message came")
        seen.append(time.monotonic())

    with ScriptedServer(stepwise) as server:
        (timeline,) = await carry_out(a_plan(server.address), at_once(1), lead)
    origin = sent_at[0] - timeline.times[0]
    assert len(timeline.times) == 4
    for i, moment in enumerate(timeline.times):
        # `origin` is late by the first message's way, which took less than its round.
        assert sent_at[i] - (seen[1] - seen[0]) <= origin + moment <= seen[i + 1]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED"),
        (grpc.StatusCode.INTERNAL, "INTERNAL"),
        (grpc.StatusCode.CANCELLED, "CANCELLED"),
    ],
)
async def test_a_failure_has_its_code_and_message(code: grpc.StatusCode, status: str) -> None:
    with ScriptedServer(fail(code, "no room: 100 %, ä", after=("a",))) as server:
        (timeline,) = await carry_out(a_plan(server.address), at_once(1))
    assert timeline.status == status
    assert timeline.detail == "no room: 100 %, ä"
    assert timeline.token_counts.tolist() == [1]
    assert not timeline.cancelled


async def test_a_stream_that_ends_without_a_finish_reason_is_a_failure() -> None:
    def cut(_request: pb.GenerateRequest, _context: grpc.ServicerContext) -> Responses:
        yield pb.GenerateResponse(token_ids=[1])

    with ScriptedServer(cut) as server:
        (timeline,) = await carry_out(a_plan(server.address), at_once(1))
    assert timeline.status == "PROTOCOL"
    assert timeline.detail == "the stream ended without a finish reason"


async def test_cancels_by_plan_come_at_the_planned_token_and_reach_the_server() -> None:
    reached = threading.Semaphore(0)

    def all_but_one(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Responses:
        ended = threading.Event()

        def end() -> None:
            reached.release()
            ended.set()

        if not context.add_callback(end):
            end()
        for i in range(request.max_tokens - 1):
            yield pb.GenerateResponse(token_ids=[i])
        assert ended.wait(SECONDS)

    with ScriptedServer(all_but_one) as server:
        plan = a_plan(server.address, cancel_share=1.0)
        timelines = await carry_out(plan, at_once(8))
        for _ in server.requests:
            assert await asyncio.to_thread(reached.acquire, timeout=20)
    workload = Workload(plan, VOCAB)
    planned = [workload.request(index).cancel_after for index in range(8)]
    assert set(planned) == {0, 1, 2, 3}
    for timeline, cut in zip(timelines, planned, strict=True):
        assert (timeline.status, timeline.cancelled) == ("CANCELLED", True)
        assert timeline.sent is not None
        # One that is to have none is cancelled soon after it was sent, or by its first.
        tokens = int(timeline.token_counts.sum())
        assert tokens == cut if cut else tokens <= 1


async def test_an_output_that_ends_before_the_planned_cancel_is_not_cancelled() -> None:
    def one_token(request: pb.GenerateRequest, _context: grpc.ServicerContext) -> Responses:
        last = end(request, 1)
        last.token_ids.append(7)
        yield last

    with ScriptedServer(one_token) as server:
        plan = a_plan(server.address, cancel_share=1.0)
        timelines = await carry_out(plan, at_once(8))
    workload = Workload(plan, VOCAB)
    late = [t for t in timelines if workload.request(t.index).cancel_after]
    assert len(late) > 2
    assert {(timeline.status, timeline.cancelled) for timeline in late} == {("OK", False)}


async def test_what_has_not_ended_when_the_drain_is_over_is_unfinished_and_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr("deploy.loadtest.generator.time", clock)
    with ScriptedServer() as server:
        server.handler = server.hold

        async def wait(generator: Generator) -> None:
            await until(lambda: generator._records[0].tokens == 1, "the token came")
            ahead[0] = 501.0

        (timeline,) = await carry_out(a_plan(server.address, drain=500.0), at_once(1), wait)
        assert server.cancelled.wait(SECONDS)
    assert timeline.status == "UNFINISHED"
    assert timeline.token_counts.tolist() == [1]
    assert not timeline.cancelled


async def test_a_stop_gives_up_what_runs_and_sends_no_more() -> None:
    with ScriptedServer() as server:
        server.handler = server.hold
        order = at_once(3)
        order.times[2] = 1000.0

        async def stop(generator: Generator) -> None:
            await until(lambda: sum(r.tokens for r in generator._records) == 2, "tokens came")
            generator.stop()

        timelines = await carry_out(a_plan(server.address), order, stop)
    assert [t.status for t in timelines] == ["UNFINISHED", "UNFINISHED", "NOT_DUE"]
    assert [t.sent is None for t in timelines] == [False, False, True]
    assert len(server.requests) == 2


async def test_a_request_has_the_deadline_and_ends_with_it() -> None:
    with ScriptedServer() as server:
        server.handler = server.hold
        (timeline,) = await carry_out(a_plan(server.address, request_timeout=4.0), at_once(1))
        assert server.deadlines[0] is not None
        assert 0 < server.deadlines[0] <= 4.0
    assert timeline.status == "DEADLINE_EXCEEDED"


async def test_users_of_a_closed_loop_have_one_request_each_at_a_time() -> None:
    running, most, lock = [0], [0], threading.Lock()

    def watch(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Responses:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        yield from count_up(request, context)
        with lock:
            running[0] -= 1

    with ScriptedServer(watch) as server:
        plan = a_plan(server.address, arrivals=Closed(3))
        timelines = await carry_out(plan, Looped(0, 3, np.arange(40), float("inf")))
    assert Counter(timeline.status for timeline in timelines) == {"OK": 40}
    assert 1 <= most[0] <= 3
    ends = sorted(timeline.ended for timeline in timelines)
    planned = sorted(timeline.planned for timeline in timelines)
    assert planned[:3] == [0, 0, 0]
    assert planned[3:] == pytest.approx(ends[:37], abs=1e-5)


async def test_a_user_thinks_before_the_next_request() -> None:
    with ScriptedServer(count_up) as server:
        plan = a_plan(server.address, arrivals=Closed(1), think=0.1)
        timelines = await carry_out(plan, Looped(0, 1, np.arange(3), float("inf")))
    assert len(timelines) == 3
    for last, following in itertools.pairwise(timelines):
        assert following.planned == pytest.approx(last.ended + 0.1, abs=1e-5)
        assert following.sent is not None
        assert following.sent >= following.planned


async def test_a_closed_loop_sends_no_more_after_its_time() -> None:
    with ScriptedServer(count_up) as server:
        plan = a_plan(server.address, arrivals=Closed(2), seconds=1)
        timelines = await carry_out(plan, Looped(0, 2, np.arange(10**6), 0.3))
    assert all(timeline.planned < 0.3 for timeline in timelines)
    assert {timeline.status for timeline in timelines} == {"OK"}
    assert len(timelines) == len(server.requests) >= 2


async def test_a_turn_carries_all_that_was_said_before() -> None:
    content = Content(Fixed(3), Fixed(4), turns=3)
    with ScriptedServer(count_up) as server:
        plan = a_plan(server.address, content=content, think=0.01)
        timelines = await carry_out(plan, at_once(2))
    assert [timeline.index for timeline in timelines] == [0, 1, 2, 3, 4, 5]
    assert {timeline.status for timeline in timelines} == {"OK"}
    prompts = {r.request_id: list(r.token_ids.ids) for r in server.requests}
    for first in (0, 3):
        one, two, three = (prompts[f"test-{first + i}"] for i in range(3))
        assert [len(one), len(two), len(three)] == [3, 10, 17]
        assert two[:7] == [*one, 1, 2, 3, 4]
        assert three[:14] == [*two, 1, 2, 3, 4]
        turns = timelines[first : first + 3]
        for last, following in itertools.pairwise(turns):
            assert following.planned == pytest.approx(last.ended + 0.01, abs=1e-5)


async def test_turns_after_a_failed_one_are_never_sent() -> None:
    content = Content(Fixed(3), Fixed(4), turns=3)
    with ScriptedServer(fail(grpc.StatusCode.INTERNAL, "broken")) as server:
        timelines = await carry_out(a_plan(server.address, content=content), at_once(1))
    assert [t.status for t in timelines] == ["INTERNAL", "NOT_DUE", "NOT_DUE"]
    assert timelines[1].detail == "the turn before it did not end well"


async def test_prompts_larger_than_the_server_s_window_arrive_whole() -> None:
    content = Content(Fixed(100_000), Fixed(2))
    with ScriptedServer(count_up) as server:
        plan = a_plan(server.address, content=content)
        timelines = await carry_out(plan, at_once(6))
    assert {timeline.status for timeline in timelines} == {"OK"}
    workload = Workload(plan, VOCAB)
    for request in server.requests:
        index = int(request.request_id.removeprefix("test-"))
        assert tuple(request.token_ids.ids) == workload.request(index).prompt


async def test_a_slow_reader_gets_everything_later() -> None:
    content = Content(Fixed(3), Fixed(60))
    with ScriptedServer(count_up) as server:
        plan = a_plan(server.address, content=content, slow_share=1.0, slow_gap=0.005)
        (timeline,) = await carry_out(plan, at_once(1))
    assert timeline.slow_reader
    assert timeline.status == "OK"
    assert timeline.token_counts.sum() == timeline.output_tokens == 60
    # All but the first few messages wait for a pause of the reader.
    assert timeline.times[-1] - timeline.times[0] > 40 * 0.005


async def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(Failed, match=r"CONNECT: no connection to 127\.0\.0\.1:1: "):
        await carry_out(a_plan("127.0.0.1:1"), at_once(1))


async def test_a_server_that_goes_away_ends_its_requests() -> None:
    server = ScriptedServer()
    server.handler = server.hold

    async def go_away(generator: Generator) -> None:
        await until(lambda: generator._records[0].tokens == 1, "the token came")
        server._server.stop(grace=None)

    with server:
        plan = a_plan(server.address, arrivals=Closed(1))
        order = Looped(0, 1, np.arange(3), float("inf"))
        timelines = await carry_out(plan, order, go_away)
    assert [timeline.status for timeline in timelines][1:] == ["UNAVAILABLE", "UNAVAILABLE"]
    assert timelines[0].status in ("UNAVAILABLE", "CANCELLED")
    assert timelines[2].planned >= timelines[1].ended + 0.099


async def test_a_server_that_comes_back_is_used_again() -> None:
    server = ScriptedServer()
    server.handler = server.hold
    again = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    add_InferenceServiceServicer_to_server(server, again)

    async def restart(generator: Generator) -> None:
        await until(lambda: generator._records[0].tokens == 1, "the token came")
        await asyncio.to_thread(server._server.stop(grace=None).wait)
        server.handler = count_up
        assert again.add_insecure_port(server.address)
        again.start()
        await until(lambda: generator._records[-1].status == "OK", "one was answered again")

    with server:
        plan = a_plan(server.address, arrivals=Closed(1), requests=1000)
        timelines = await carry_out(plan, Looped(0, 1, np.arange(1000), float("inf")), restart)
    again.stop(grace=None).wait()
    statuses = [timeline.status for timeline in timelines]
    assert len(timelines) == 1000
    assert statuses[0] != "OK"
    first_ok = statuses.index("OK")
    assert set(statuses[1:first_ok]) <= {"UNAVAILABLE"}
    assert set(statuses[first_ok:]) == {"OK"}
