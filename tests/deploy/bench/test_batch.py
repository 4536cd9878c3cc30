"""The batch that benches time: what is sent, and what its times are."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import pytest

from deploy.bench.batch import Batch
from nanoserve.v1 import inference_pb2 as pb
from tests.protos.scripted_server import ScriptedServer


def count_up(
    request: pb.GenerateRequest, _context: grpc.ServicerContext
) -> Iterator[pb.GenerateResponse]:
    for i in range(request.max_tokens):
        yield pb.GenerateResponse(token_ids=[i])
    usage = pb.Usage(prompt_tokens=4, output_tokens=request.max_tokens)
    yield pb.GenerateResponse(finish_reason=pb.FINISH_REASON_LENGTH, usage=usage)


def test_a_batch_sends_the_prompts_that_it_tells() -> None:
    batch = Batch(3, 4, 50, seed=1)
    with ScriptedServer(count_up) as server:
        times = batch.run(server.address, 5)
    sent = [list(request.token_ids.ids) for request in server.requests]
    assert sorted(sent) == sorted(batch.prompts())
    assert {len(prompt) for prompt in sent} == {4}
    assert {request.max_tokens for request in server.requests} == {5}
    assert {request.temperature for request in server.requests} == {0}
    assert all(request.ignore_eos for request in server.requests)
    assert len(times.first_tokens) == 3
    assert all(0 < first < times.end for first in times.first_tokens)


def test_a_burst_sends_what_no_burst_before_it_sent() -> None:
    batch = Batch(2, 4, 50, seed=1)
    with ScriptedServer(count_up) as server, batch.bursts(server.address, 3) as bursts:
        first, second = bursts.send(), bursts.send()
    sent = {tuple(request.token_ids.ids) for request in server.requests}
    assert len(sent) == 4
    assert sent >= set(map(tuple, batch.prompts()))
    assert len({request.request_id for request in server.requests}) == 4
    assert 0 < first.due < second.due < time.monotonic()
    for times in (first, second):
        assert (len(times.first_tokens), times.tokens) == (2, 6)
        assert len(times.gaps) == 4  # the first message's tokens have none


def test_in_turn_each_is_sent_when_the_one_before_has_ended() -> None:
    events: list[str] = []

    def told(
        request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        events.append("begin")
        for response in count_up(request, context):
            if response.finish_reason:
                events.append("end")
            yield response

    batch = Batch(1, 4, 50, seed=1)
    with ScriptedServer(told) as server, batch.bursts(server.address, 3) as bursts:
        bursts.send()
        turns = bursts.send_in_turn(5)
    assert events == ["begin", "end"] * 6
    assert [turn.tokens for turn in turns] == [3] * 5
    assert all(turn.first_tokens[0] > 0 for turn in turns)
    ends = [turn.due + turn.end - 1e-5 for turn in turns]  # of times in microseconds
    assert all(turn.due > end for turn, end in zip(turns[1:], ends[:-1], strict=True))
    assert len({tuple(request.token_ids.ids) for request in server.requests}) == 6


def test_another_seed_sends_others() -> None:
    assert Batch(3, 4, 50, 1).prompts() == Batch(3, 4, 50, 1).prompts()
    assert Batch(3, 4, 50, 1).prompts() != Batch(3, 4, 50, 2).prompts()


def test_a_stream_of_another_length_is_an_error() -> None:
    def one(
        _request: pb.GenerateRequest, _context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        usage = pb.Usage(prompt_tokens=4, output_tokens=1)
        yield pb.GenerateResponse(token_ids=[1], finish_reason=pb.FINISH_REASON_STOP, usage=usage)

    with (
        ScriptedServer(one) as server,
        pytest.raises(RuntimeError, match="ended with OK after 1 tokens; 2 were asked for"),
    ):
        Batch(1, 4, 50, 1).run(server.address, 2)


@pytest.mark.parametrize("connections", [1, 3])
def test_a_user_sends_over_as_many_connections_as_told(connections: int) -> None:
    peers: list[str] = []

    def told(
        request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        peers.append(context.peer())
        yield from count_up(request, context)

    user = Batch(1, 4, 50, seed=1, connections=connections)
    with ScriptedServer(told) as server, user.bursts(server.address, 1) as bursts:
        bursts.send_in_turn(6)
    assert len(peers) == 6
    assert len(set(peers)) == connections
    assert peers[:3] == peers[3:], "in turn"
