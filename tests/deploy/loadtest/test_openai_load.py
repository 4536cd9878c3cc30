"""Load on a server with OpenAI's streaming API."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from deploy.loadtest.arrivals import Burst
from deploy.loadtest.generator import Generator
from deploy.loadtest.lengths import Fixed
from deploy.loadtest.plan import Content, LoadPlan, OpenAI
from deploy.loadtest.target import Failed
from deploy.loadtest.workload import Workload
from tests.deploy.loadtest.running import VOCAB, at_once, carry_out
from tests.deploy.loadtest.sse_server import Reply, SseServer
from tests.waiting import until


def a_plan(url: str, endpoint: str = "completions", **others: Any) -> LoadPlan:
    content = others.pop("content", Content(Fixed(3), Fixed(4)))
    target = OpenAI(url, endpoint, body=others.pop("body", {}))
    return LoadPlan(target, Burst(), content, **({"requests": 100} | others))


async def four_tokens(reply: Reply) -> None:
    for text in ("a", "b", "c", "d"):
        await reply.text(text)
    await reply.end(3, 4)


async def test_messages_are_counted_and_usage_read() -> None:
    async with SseServer(four_tokens) as server:
        timelines = await carry_out(a_plan(server.url), at_once(5))
    assert len(timelines) == 5
    for timeline in timelines:
        assert timeline.status == "OK"
        assert timeline.token_counts.tolist() == [1, 1, 1, 1, 0, 0]
        assert timeline.has_text.tolist() == [True] * 4 + [False] * 2
        assert (timeline.prompt_tokens, timeline.output_tokens) == (3, 4)
        assert timeline.cached_tokens == 2


async def test_ids_are_counted_where_the_server_gives_them() -> None:
    async def ids(reply: Reply) -> None:
        await reply.text("", token_ids=[1])
        await reply.text("abc", token_ids=[2, 3, 4])
        await reply.end(3, 4)

    async with SseServer(ids) as server:
        plan = a_plan(server.url, body={"return_token_ids": True})
        (timeline,) = await carry_out(plan, at_once(1))
    assert timeline.token_counts.tolist() == [1, 3, 0, 0]
    assert timeline.has_text.tolist() == [False, True, False, False]
    assert server.bodies[0]["return_token_ids"] is True


async def test_a_message_s_time_lies_between_its_send_and_the_next() -> None:
    """The server sends the next event only when the tool has recorded the last."""
    sent: list[float] = []
    recorded = asyncio.Semaphore(0)
    origins: list[float] = []

    async def stepwise(reply: Reply) -> None:
        for text in ("a", "", "b"):
            sent.append(time.monotonic())
            await reply.text(text)
            await recorded.acquire()
        await reply.end(3, 2)

    async def watch(generator: Generator) -> None:
        origins.append(generator._setup.origin)
        for count in (1, 2, 3):
            record = generator._records[0]
            await until(lambda r=record, n=count: len(r.times) >= n, "the event came")
            recorded.release()

    async with SseServer(stepwise) as server:
        (timeline,) = await carry_out(a_plan(server.url), at_once(1), watch)
    assert timeline.token_counts.tolist()[:3] == [1, 0, 1]
    moments = [origins[0] + t for t in timeline.times[:3]]
    rounding = 1e-6
    for i in range(3):
        assert moments[i] >= sent[i] - rounding
        if i < 2:
            assert moments[i] <= sent[i + 1] + rounding


async def test_a_request_says_what_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    async with SseServer(four_tokens) as server:
        plan = a_plan(server.url + "/v1", temperature=0.5, body={"min_tokens": 4, "seed": 1})
        await carry_out(plan, at_once(1))
    expected = Workload(plan, VOCAB).request(0)
    assert server.paths == ["/v1/completions"]
    assert server.keys == ["Bearer secret"]
    assert server.bodies == [
        {
            "model": "tiny",
            "prompt": list(expected.prompt),
            "max_tokens": 4,
            "temperature": 0.5,
            "seed": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "min_tokens": 4,
        }
    ]


async def test_a_chat_s_turn_carries_all_that_was_said_before(tmp_path: Path) -> None:
    async def chat(reply: Reply) -> None:
        for delta in ({"role": "assistant", "content": ""}, {"content": "yes"}, {"content": " no"}):
            await reply.event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        await reply.end(9, 2)

    path = tmp_path / "text"
    path.write_text("one two three four five six")
    content = Content(Fixed(2), Fixed(4), text=path, turns=2)
    async with SseServer(chat) as server:
        plan = a_plan(server.url, "chat", content=content, ignore_eos=False)
        timelines = await carry_out(plan, at_once(1))
    prompts = [Workload(plan, VOCAB).request(index).prompt for index in (0, 1)]
    assert [timeline.token_counts.tolist()[:3] for timeline in timelines] == [[0, 1, 1]] * 2
    assert server.paths == ["/v1/chat/completions"] * 2
    assert server.bodies[1]["messages"] == [
        {"role": "user", "content": prompts[0]},
        {"role": "assistant", "content": "yes no"},
        {"role": "user", "content": prompts[1]},
    ]
    assert "ignore_eos" not in server.bodies[0]


async def test_a_refusal_has_the_status_and_what_the_server_said() -> None:
    async with SseServer(four_tokens) as server:
        server.refusal = (503, "too busy " + 1000 * "x")
        (timeline,) = await carry_out(a_plan(server.url), at_once(1))
    assert timeline.status == "HTTP 503"
    assert timeline.detail.startswith("too busy xxx")
    assert len(timeline.detail) == 300
    assert timeline.token_counts.tolist() == []


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", "PROTOCOL"),
        (b"data: [DONE]\n\n", "PROTOCOL"),
        (b"data: nothing\n\n", "PROTOCOL"),
        (b'data: {"error": {"message": "broken", "code": 500}}\n\n', "HTTP 500"),
    ],
)
async def test_a_stream_that_breaks_is_a_failure_with_what_came(data: bytes, status: str) -> None:
    async def broken(reply: Reply) -> None:
        await reply.text("a")
        if data:
            await reply.raw(data)

    async with SseServer(broken) as server:
        (timeline,) = await carry_out(a_plan(server.url), at_once(1))
    assert timeline.status == status
    assert timeline.token_counts.tolist() == [1]


async def test_cancels_by_plan_close_the_connection_at_the_planned_token() -> None:
    async def endless(reply: Reply) -> None:
        for _ in range(3):
            await reply.text("a")
        await asyncio.sleep(60)

    async with SseServer(endless) as server:
        plan = a_plan(server.url, cancel_share=1.0)
        timelines = await carry_out(plan, at_once(8))
        await until(lambda: server.lost == len(server.bodies), "all were left")
    workload = Workload(plan, VOCAB)
    for timeline in timelines:
        assert (timeline.status, timeline.cancelled) == ("CANCELLED", True)
        assert timeline.to_cancel
        cut, tokens = workload.request(timeline.index).cancel_after, timeline.token_counts.sum()
        assert tokens == cut if cut else tokens <= 1


async def test_a_request_that_is_late_ends_with_its_deadline() -> None:
    async def silent(reply: Reply) -> None:
        await reply.text("a")
        await asyncio.sleep(60)

    async with SseServer(silent) as server:
        (timeline,) = await carry_out(a_plan(server.url, request_timeout=4.0), at_once(1))
    assert timeline.status == "DEADLINE_EXCEEDED"
    assert timeline.token_counts.tolist() == [1]


async def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(Failed, match=r"CONNECT: http://127\.0\.0\.1:1/v1/models: "):
        await carry_out(a_plan("http://127.0.0.1:1"), at_once(1))
