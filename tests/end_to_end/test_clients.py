"""What clients do to a server, and what it does to them, over real gRPC."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import grpc
import pytest

from nanoserve import (
    AsyncClient,
    CancelledError,
    Client,
    DeadlineExceededError,
    InvalidRequestError,
    OverloadedError,
)
from nanoserve.v1 import inference_pb2 as pb
from nanoserve.v1 import inference_pb2_grpc as pb_grpc
from tests.end_to_end.servers import running
from tests.waiting import until, wait_for
from worker.simulated_tokens import expected_tokens

VOCAB = 300
PROMPT = [1, 2, 3]
LONG = 1500  # tokens of a request that is there until it is cancelled: 15 s, in nearly all blocks
WORKER = (
    *("--vocab-size", str(VOCAB), "--max-model-len", "4000", "--num-blocks", "101"),
    *("--max-rows", "4", "--step-ms", "10"),
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running(simulate=True, worker=WORKER, scheduler=("--max-queue", "8")) as servers:
        yield servers.address


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client
        wait_for(lambda: is_idle(client), "what was cancelled has left")
        assert_served(client)
        wait_for(lambda: is_idle(client), "the pool is whole")


def assert_served(client: Client) -> None:
    completion = client.generate(token_ids=PROMPT, max_tokens=5, temperature=0).collect()
    assert list(completion.token_ids) == expected_tokens(PROMPT, 5, VOCAB)


def is_idle(client: Client) -> bool:
    status = client.status()
    busy = status.running_requests + status.waiting_requests
    return not busy and status.free_blocks == status.usable_blocks == 100


def test_tokens_stream_as_they_are_made(client: Client) -> None:
    """Several come at once where one who passes them on stands still, but never all of them."""
    tokens: list[int] = []
    with client.generate(token_ids=PROMPT, max_tokens=LONG, temperature=0) as generation:
        for _ in range(6):
            chunk = next(generation)
            assert chunk.finish_reason is None
            tokens += chunk.token_ids
    assert tokens == expected_tokens(PROMPT, len(tokens), VOCAB)


def test_a_cancelled_call_frees_its_blocks(client: Client) -> None:
    generation = client.generate(token_ids=PROMPT, max_tokens=LONG, temperature=0)
    next(generation)
    assert client.status().running_requests == 1
    generation.close()


def test_a_client_that_disappears_frees_its_blocks(address: str, client: Client) -> None:
    other = Client(address)
    generation = other.generate(token_ids=PROMPT, max_tokens=LONG, temperature=0)
    next(generation)
    other.close()
    with pytest.raises(CancelledError):
        list(generation)


def test_a_deadline_in_decode_ends_the_call_and_frees_its_blocks(client: Client) -> None:
    generation = client.generate(token_ids=PROMPT, max_tokens=LONG, timeout=0.3)
    with pytest.raises(DeadlineExceededError):
        list(generation)


def test_expired_calls_never_start_and_leave_nothing_behind(client: Client) -> None:
    """More calls than rows, each with a deadline shorter than the queue."""
    running = [client.generate(token_ids=PROMPT, max_tokens=LONG) for _ in range(4)]
    for generation in running:
        next(generation)
    prompt_tokens = client.status().prompt_tokens
    late = [client.generate(token_ids=PROMPT, max_tokens=5, timeout=0.1) for _ in range(5)]
    for generation in late:
        with pytest.raises(DeadlineExceededError):
            list(generation)
    assert client.status().prompt_tokens == prompt_tokens
    for generation in running:
        generation.close()


async def test_calls_beyond_rows_and_queue_are_refused_with_a_time_to_retry(
    address: str, client: Client
) -> None:
    """max_rows 4, queue 8, 50 calls: the first four go on until all have come."""
    running = [client.generate(token_ids=PROMPT, max_tokens=LONG) for _ in range(4)]
    for generation in running:
        next(generation)
    async with AsyncClient(address) as asking:
        calls = [
            asyncio.ensure_future(asking.generate(token_ids=PROMPT, max_tokens=40).collect())
            for _ in range(46)
        ]
        await until(lambda: sum(call.done() for call in calls) >= 38)
        status = client.status()
        assert status.running_requests + status.waiting_requests == 12
        for generation in running:
            generation.close()
        ends = await asyncio.gather(*calls, return_exceptions=True)
    refusals = [end for end in ends if isinstance(end, OverloadedError)]
    finished = [end for end in ends if not isinstance(end, BaseException)]
    assert (len(finished), len(refusals)) == (8, 38)
    assert {len(completion.token_ids) for completion in finished} == {40}
    for refusal in refusals:
        assert refusal.retry_after
        assert "12" in str(refusal)


def test_one_request_id_is_never_two_requests(address: str, client: Client) -> None:
    first = client.generate(token_ids=PROMPT, max_tokens=LONG, temperature=0, request_id="same")
    tokens = list(next(first).token_ids)
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        request = pb.GenerateRequest(request_id="same", token_ids=pb.TokenIds(ids=PROMPT))
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.Generate(request))
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
    (row,) = client.status(rows=True).rows
    while len(tokens) <= row.output_tokens:
        tokens.extend(next(first).token_ids)
    assert tokens == expected_tokens(PROMPT, len(tokens), VOCAB)
    first.close()


def request(**fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"token_ids": pb.TokenIds(ids=PROMPT)} | fields))


BAD = [
    ("prompt", "", pb.GenerateRequest()),
    ("token_ids", "", request(token_ids=pb.TokenIds())),
    ("token_ids.ids", "300", request(token_ids=pb.TokenIds(ids=[5, VOCAB]))),
    ("token_ids.ids", "-1", request(token_ids=pb.TokenIds(ids=[-1]))),
    ("token_ids.ids", str(2**31), request(token_ids=pb.TokenIds(ids=[0, 2**31]))),
    ("token_ids.ids", str(2**63 - 1), request(token_ids=pb.TokenIds(ids=[2**63 - 1]))),
    ("temperature", "nan", request(temperature=float("nan"))),
    ("temperature", "inf", request(temperature=float("inf"))),
    ("temperature", "-1", request(temperature=-1.0)),
    ("temperature", "1e+30", request(temperature=1e30)),
    ("seed", "-1", request(seed=-1)),
    ("max_tokens", "0", request(max_tokens=0)),
    ("max_tokens", str(2**31 - 1), request(max_tokens=2**31 - 1)),
    ("stop_token_ids", "300", request(stop_token_ids=[VOCAB])),
    ("stop_token_ids", "65", request(stop_token_ids=range(65))),
    ("request_id", "129", request(request_id="a" * 129)),
]


@pytest.mark.parametrize(("field", "value", "bad"), BAD)
def test_bad_input_is_refused_by_name_and_the_next_request_on_the_channel_is_served(
    address: str, field: str, value: str, bad: pb.GenerateRequest
) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.Generate(bad, timeout=60))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert field in refused.value.details()
        assert value in refused.value.details()
        good = request(max_tokens=3, temperature=-0.0)
        tokens = [i for answer in stub.Generate(good) for i in answer.token_ids]
        assert tokens == expected_tokens(PROMPT, 3, VOCAB)


def test_prompts_too_long_for_the_pool_are_refused_and_those_behind_are_served(
    client: Client,
) -> None:
    """100 usable blocks of 16, five prompts too long, three short ones behind."""
    long = [client.generate(token_ids=[7] * 1602, max_tokens=1) for _ in range(5)]
    short = [client.generate(token_ids=[i], max_tokens=4, temperature=0) for i in range(3)]
    for generation in long:
        with pytest.raises(InvalidRequestError, match=r"1602.*1601|1601.*1602"):
            generation.collect()
    for i, generation in enumerate(short):
        assert list(generation.collect().token_ids) == expected_tokens([i], 4, VOCAB)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty: 0, must be from 0.01 to 100"),
        ({"repetition_penalty": 1e39}, "repetition_penalty: inf, must be"),
        ({"frequency_penalty": math.nan}, "frequency_penalty: nan, must be from -2 to 2"),
        ({"presence_penalty": -2.5}, "presence_penalty: -2.5, must be from -2 to 2"),
        ({"top_logprobs": 21}, "top_logprobs: 21, must be from 0 to 20"),
        ({"top_logprobs": -1}, "top_logprobs: -1, must be from 0 to 20"),
    ],
)
def test_a_penalty_or_number_of_log_probabilities_out_of_range_is_refused(
    client: Client, options: dict[str, float], message: str
) -> None:
    """And the next request on the channel is served, by the fixture."""
    with pytest.raises(InvalidRequestError, match=message) as refused:
        client.generate(token_ids=PROMPT, max_tokens=5, **options).collect()
    assert [violation.field for violation in refused.value.violations] == list(options)


def test_without_max_tokens_a_request_gets_all_the_room_there_is(client: Client) -> None:
    prompt = [3] * 1590
    completion = client.generate(token_ids=prompt, temperature=0).collect()
    assert list(completion.token_ids) == expected_tokens(prompt, 11, VOCAB)
