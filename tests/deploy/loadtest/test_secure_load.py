"""Load on a server with TLS that wants a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from deploy.loadtest.arrivals import Burst
from deploy.loadtest.fleet import LoadError
from deploy.loadtest.plan import LoadPlan, Nanoserve
from deploy.loadtest.run import run_load
from deploy.loadtest.target import Failed
from nanoserve import tls
from nanoserve.v1 import inference_pb2 as pb
from tests.certificates import Certificates
from tests.deploy.loadtest.running import at_once, carry_out
from tests.deploy.loadtest.test_run import SHORT, answer
from tests.protos.scripted_server import ScriptedServer

TOKEN = "ns_of-the-load-tool"


def guarded(
    request: pb.GenerateRequest, context: grpc.ServicerContext
) -> Iterator[pb.GenerateResponse]:
    if dict(context.invocation_metadata()).get("authorization") != f"Bearer {TOKEN}":
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
    return answer(request, context)


@pytest.fixture
def ours(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path, "ours")


@pytest.fixture
def server(ours: Certificates) -> Iterator[ScriptedServer]:
    with ScriptedServer(guarded, tls.server_credentials(tls.load(ours.server()))) as server:
        yield server


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return str(path)


def a_plan(target: Nanoserve, **others: object) -> LoadPlan:
    return LoadPlan(target, Burst(), SHORT, **({"requests": 20} | others))


async def test_requests_and_a_slow_reader_go_encrypted_with_the_token(
    server: ScriptedServer, ours: Certificates, token_file: str
) -> None:
    target = Nanoserve(server.address, str(ours.ca), token_file)
    plan = a_plan(target, slow_share=0.2, slow_gap=0.001)
    timelines = await carry_out(plan, at_once(20))
    assert [timeline.status for timeline in timelines] == ["OK"] * 20
    assert {tuple(timeline.token_counts.tolist()) for timeline in timelines} == {(1, 1)}


def test_generator_processes_find_all_of_it_and_no_saved_run_has_the_token(
    server: ScriptedServer, ours: Certificates, monkeypatch
) -> None:
    monkeypatch.setenv("NANOSERVE_TLS_CA", str(ours.ca))
    monkeypatch.setenv("NANOSERVE_TOKEN", TOKEN)
    run = run_load(a_plan(Nanoserve(server.address), processes=1, sample_interval=0.0))
    assert [timeline.status for timeline in run.timelines] == ["OK"] * 20
    assert TOKEN not in str(run.settings)


def test_another_ca_ends_the_run_before_it_starts(
    server: ScriptedServer, tmp_path: Path, token_file: str
) -> None:
    target = Nanoserve(server.address, str(Certificates(tmp_path, "theirs").ca), token_file)
    with pytest.raises(LoadError, match="not signed by the CA that was given"):
        run_load(a_plan(target, processes=1))


async def test_a_generator_tells_of_another_ca_too(server: ScriptedServer, tmp_path: Path) -> None:
    target = Nanoserve(server.address, str(Certificates(tmp_path, "theirs").ca))
    with pytest.raises(Failed, match="CERTIFICATE_VERIFY_FAILED"):
        await carry_out(a_plan(target), at_once(1))


async def test_a_request_without_the_token_fails_with_what_the_server_says(
    server: ScriptedServer, ours: Certificates, monkeypatch
) -> None:
    monkeypatch.delenv("NANOSERVE_TOKEN", raising=False)
    monkeypatch.delenv("NANOSERVE_TOKEN_FILE", raising=False)
    plan = a_plan(Nanoserve(server.address, str(ours.ca)), requests=1)
    (timeline,) = await carry_out(plan, at_once(1))
    assert (timeline.status, timeline.detail) == ("UNAUTHENTICATED", "no token")
