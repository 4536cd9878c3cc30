"""Who calls without a good token gets UNAUTHENTICATED, and nothing else."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2_grpc

from nanoserve import AsyncClient, UnauthenticatedError
from nanoserve.v1.inference_pb2 import GenerateRequest, GetStatusRequest, WatchStatusRequest
from scheduler.api.authentication import NO_TOKEN, WRONG_TOKEN
from scheduler.api.protection import Protection
from scheduler.api.token_hashes import hash_line, make_token
from tests.scheduler.api.scripted_engine import ScriptedEngine

TOKEN, OTHER = make_token(), make_token()


@pytest.fixture
def hashes(tmp_path: Path) -> Path:
    path = tmp_path / "hashes"
    path.write_text(f"{hash_line('other', OTHER)}\n{hash_line('ours', TOKEN)}\n")
    return path


@pytest.fixture
async def served(serve, hashes: Path):
    return await serve(ScriptedEngine([5, 2]), protection=Protection(token_hashes=str(hashes)))


def bearer(token: str, scheme: str = "Bearer") -> tuple[tuple[str, str], ...]:
    return (("authorization", f"{scheme} {token}"),)


async def end(call) -> None:
    if not hasattr(call, "__aiter__"):
        await call
        return
    async for _ in call:
        pass


async def refusal(call) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await end(call)
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    return raised.value.details()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, NO_TOKEN),
        ((("authorization", f"Basic {TOKEN}"),), NO_TOKEN),
        ((("authorization", TOKEN),), NO_TOKEN),
        ((("authorization", "Bearer "),), NO_TOKEN),
        (bearer(TOKEN[:-1]), WRONG_TOKEN),
        (bearer(f"{TOKEN} x"), WRONG_TOKEN),
        ((*bearer("wrong"), *bearer(TOKEN)), WRONG_TOKEN),
    ],
)
async def test_every_method_is_closed_before_anything_is_validated(
    served, caplog, metadata, message
):
    wrong = GenerateRequest(seed=-1)  # INVALID_ARGUMENT, if it were looked at
    assert await refusal(served.stub.Generate(wrong, metadata=metadata)) == message
    assert await refusal(served.stub.GetStatus(GetStatusRequest(), metadata=metadata)) == message
    watch = served.stub.WatchStatus(WatchStatusRequest(), metadata=metadata)
    assert await refusal(watch) == message
    reflection = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    # Without a request: the library says INTERNAL of one that it could not send in time.
    call = reflection.ServerReflectionInfo(metadata=metadata, timeout=10)
    assert await refusal(call) == message
    unknown = served.channel.unary_unary("/nanoserve.v1.InferenceService/None")
    assert await refusal(unknown(b"", metadata=metadata)) == message
    assert TOKEN not in message + caplog.text
    assert TOKEN[:-1] not in message + caplog.text
    assert served.engine.log == []
    assert served.server._service._records.totals.unauthenticated == 5


async def test_a_good_token_lets_in_whichever_of_the_file_it_is(served):
    for metadata in (bearer(TOKEN), bearer(OTHER), bearer(TOKEN, "bearer")):
        request = GenerateRequest(token_ids={"ids": [1]})
        responses = [r async for r in served.stub.Generate(request, metadata=metadata)]
        assert [i for r in responses for i in r.token_ids] == [5, 2]
    assert served.server._service._records.totals.unauthenticated == 0


async def test_the_line_that_a_request_ends_with_names_whose_token_it_had(served, caplog):
    caplog.set_level(logging.INFO)
    metadata = {"other": bearer(OTHER), "ours": bearer(TOKEN)}
    for name in ("other", "ours", "other"):
        request = GenerateRequest(token_ids={"ids": [1]}, request_id=f"of-{name}")
        assert [r async for r in served.stub.Generate(request, metadata=metadata[name])]
    ended = [r.fields for r in caplog.records if r.getMessage() == "request ended"]
    named = [(fields["request_id"], fields["caller"]) for fields in ended]
    assert named == [("of-other", "other"), ("of-ours", "ours"), ("of-other", "other")]


async def test_health_needs_no_token(served):
    answer = await served.health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_the_client_sends_its_token_with_every_call(served):
    async with AsyncClient(served.server.address, token=TOKEN) as client:
        assert (await client.generate(token_ids=[1]).collect()).token_ids == (5, 2)
        assert (await client.status()).model == "tiny"
        async with client.watch_status() as watch:
            assert (await anext(watch)).model == "tiny"
    async with AsyncClient(served.server.address) as client:
        with pytest.raises(UnauthenticatedError, match="UNAUTHENTICATED: no token: send the"):
            await client.generate(token_ids=[1]).collect()
    async with AsyncClient(served.server.address, token=make_token()) as client:
        with pytest.raises(UnauthenticatedError, match="the token is none of this server's"):
            await client.status()


async def test_a_changed_file_holds_for_the_next_call_and_a_broken_one_does_not(
    served, hashes: Path
):
    async def lets_in(token: str) -> bool:
        async with AsyncClient(served.server.address, token=token) as client:
            try:
                await client.status()
            except UnauthenticatedError:
                return False
            return True

    new = make_token()
    hashes.write_text(hash_line("new", new))
    assert [await lets_in(token) for token in (new, TOKEN)] == [True, False]
    hashes.write_text("nonsense")
    assert [await lets_in(token) for token in (new, TOKEN)] == [True, False]


async def test_the_log_tells_of_refusals_once_a_second_at_most(served, caplog):
    for _ in range(20):
        await refusal(served.stub.GetStatus(GetStatusRequest(), metadata=bearer("wrong")))
    lines = [m for m in caplog.messages if m.startswith("calls refused")]
    assert lines[0].startswith("calls refused: 1, the last from ipv4:127.0.0.1:")
    assert lines[0].endswith(": the token is none of this server's")
    served.server._token_check._clock = lambda: float("inf")
    await refusal(served.stub.GetStatus(GetStatusRequest()))
    last = [m for m in caplog.messages if m.startswith("calls refused")][-1]
    assert last.endswith(": no token")
    counted = [int(m.split()[2].rstrip(",")) for m in caplog.messages if "calls refused" in m]
    assert sum(counted) == 21
    assert len(counted) < 15
