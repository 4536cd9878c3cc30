"""Front ends in processes of their own: one scheduler to its clients, whatever happens to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from nanoserve.v1 import inference_pb2 as pb
from nanoserve.v1 import inference_pb2_grpc as pb_grpc
from tests.end_to_end.front_ends import (
    BLOCKS,
    LONG,
    PROMPT,
    VOCAB,
    FrontEnds,
    channel,
    connections,
    listening,
    log_of,
    request,
    run_streams,
    start_scheduler,
)
from tests.waiting import SECONDS, wait_for
from worker.simulated_tokens import expected_tokens

# 10 ms a step, so that what is started has not ended when something happens.
SLOW = ("--step-ms", "10")

Start = Callable[..., FrontEnds]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[FrontEnds] = []

    def run(count: int, *flags: str, worker: tuple[str, ...] = ()) -> FrontEnds:
        started.append(FrontEnds(tmp_path, count, *flags, worker_flags=worker))
        return started[-1]

    yield run
    for servers in started:
        servers.stop()


@pytest.fixture
def stubs() -> Iterator[Callable[[str, int], list[pb_grpc.InferenceServiceStub]]]:
    """So many stubs, each with a connection of its own."""
    with contextlib.ExitStack() as channels:
        yield lambda address, count: [
            pb_grpc.InferenceServiceStub(channels.enter_context(channel(address)))
            for _ in range(count)
        ]


def status(servers: FrontEnds, **include: bool) -> pb.GetStatusResponse:
    """A connection that a front end did not live to accept is made again."""
    with channel(servers.address) as opened:
        stub = pb_grpc.InferenceServiceStub(opened)
        return stub.GetStatus(pb.GetStatusRequest(**include), timeout=SECONDS, wait_for_ready=True)


def at_work(servers: FrontEnds) -> tuple[int, int]:
    """How many requests run, and how many wait."""
    now = status(servers)
    return now.running_requests, now.waiting_requests


def is_whole(servers: FrontEnds) -> bool:
    now = status(servers)
    return now.free_blocks == BLOCKS and now.running_requests + now.waiting_requests == 0


def ended(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def tokens_of(call: Iterator[pb.GenerateResponse]) -> list[int]:
    return [token for response in call for token in response.token_ids]


def code_of(call: Iterator[pb.GenerateResponse]) -> grpc.StatusCode:
    """How it ends, badly."""
    with pytest.raises(grpc.RpcError) as raised:
        list(call)
    return raised.value.code()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnds]:
    """For tests that leave them as they were."""
    servers = FrontEnds(tmp_path_factory.mktemp("two"), 2, worker_flags=("--step-ms", "4"))
    yield servers
    servers.stop()


def test_200_streams_at_once_get_the_right_tokens_from_one_front_end(start: Start) -> None:
    check_200_streams(start(1))


def test_200_streams_at_once_get_the_right_tokens_from_two_front_ends(two: FrontEnds) -> None:
    check_200_streams(two)


def check_200_streams(servers: FrontEnds) -> None:
    """And /metrics counts what the clients count."""
    before, ended = servers.metrics(), outcomes(servers)
    totals = asyncio.run(run_streams(servers.address, 200, channels=12))
    wait_for(lambda: is_whole(servers), "the pool is whole")
    ended.update(
        stop=totals.outcomes["stop"],
        length=totals.outcomes["length"],
        invalid=totals.outcomes["invalid_argument"],
    )
    assert totals.outcomes["invalid_argument"] == 10
    assert totals.prompt_tokens == 2 * 190
    wait_for(lambda: outcomes(servers) == ended, "all are counted once")
    after = servers.metrics()
    for name, count in (
        ('nanoserve_requests_refused_total{reason="invalid"}', 10),
        ("nanoserve_prompt_tokens_total", totals.prompt_tokens),
        ("nanoserve_generation_tokens_total", totals.output_tokens),
    ):
        assert after[name] - before[name] == count, name


def outcomes(servers: FrontEnds) -> Counter[str]:
    """Calls by how they ended, of /metrics."""
    found = re.compile(r'nanoserve_requests_total\{outcome="(.+)"\}').fullmatch
    values = ((found(name), value) for name, value in servers.metrics().items())
    return Counter({match[1]: int(value) for match, value in values if match})


def test_a_request_is_one_to_all_front_ends_by_its_id_and_in_the_status(
    two: FrontEnds, stubs
) -> None:
    counted = outcomes(two).total()
    first, *others = stubs(two.address, 16)
    running = first.Generate(request(LONG, request_id="same"))
    got = list(next(running).token_ids)
    for stub in others:
        call = stub.Generate(request(5, request_id="same"))
        assert code_of(call) is grpc.StatusCode.ALREADY_EXISTS
    assert all(two.connected())
    for stub in others:
        asked = pb.GetStatusRequest(include_rows=True, include_block_map=True)
        answer = stub.GetStatus(asked, timeout=SECONDS)
        (row,) = answer.rows
        assert row.request_id == "same"
        assert list(answer.block_owners).count(row.row) == row.blocks > 0
    got += next(running).token_ids
    assert got == expected_tokens(PROMPT, len(got), VOCAB)
    running.cancel()
    wait_for(lambda: outcomes(two).total() == counted + 16, "all are counted")


def test_the_queue_is_one_for_all_front_ends(start: Start, stubs) -> None:
    servers = start(2, "--max-queue", "3", worker=("--max-rows", "8", "--step-ms", "10"))
    opened = stubs(servers.address, 18)
    calls = [stub.Generate(request(LONG)) for stub in opened for _ in range(2)]
    wait_for(lambda: sum(not call.is_active() for call in calls) >= 36 - 11, "the rest is refused")
    assert all(servers.connected())
    # The limit is on all that are taken. Who of them gets a row does so with the next step.
    wait_for(lambda: at_work(servers) == (8, 3), "every row has a request, and the rest waits")
    refused = [call for call in calls if not call.is_active()]
    assert [call.code() for call in refused] == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 25
    for call in calls:
        call.cancel()
    wait_for(lambda: status(servers).waiting_requests == 0, "those who waited have left")


def test_a_killed_front_end_takes_its_own_streams_with_it_and_is_replaced(
    two: FrontEnds, stubs
) -> None:
    counted = outcomes(two).total()
    calls = [stub.Generate(request(LONG)) for stub in stubs(two.address, 16)]
    got = [list(next(call).token_ids) for call in calls]
    wait_for(lambda: sum(two.connected()) == 16, "nobody else is connected any more")
    before = two.processes()
    victim = before[0]
    broken = len(connections(victim, "ESTABLISHED"))
    assert 0 < broken < 16
    victim.kill()
    wait_for(lambda: status(two).running_requests == 16 - broken, "its requests are aborted")
    most = max(row.output_tokens for row in status(two, include_rows=True).rows)
    right = lost = 0
    for call, tokens in zip(calls, got, strict=True):
        try:
            while len(tokens) <= most:
                tokens += next(call).token_ids
            right += tokens == expected_tokens(PROMPT, len(tokens), VOCAB)
            call.cancel()
        except grpc.RpcError as error:
            lost += error.code() is grpc.StatusCode.UNAVAILABLE
    assert (right, lost) == (16 - broken, broken)
    wait_for(lambda: len(two.processes()) == 2, "another one serves")
    assert set(two.processes()) - set(before)
    wait_for(lambda: is_whole(two), "the pool is whole")
    totals = asyncio.run(run_streams(two.address, 40, channels=8))
    assert totals.outcomes["length"] + totals.outcomes["stop"] == 38
    wait_for(lambda: outcomes(two).total() == counted + 16 + 40, "all are counted")


def test_a_drain_lets_the_streams_of_all_front_ends_finish(start: Start, stubs) -> None:
    servers = start(2, worker=SLOW)
    opened = stubs(servers.address, 18)
    calls = [stub.Generate(request(300)) for stub in opened]
    got = [list(next(call).token_ids) for call in calls]
    processes = servers.processes()
    assert all(servers.connected())
    os.kill(servers.scheduler.pid, signal.SIGTERM)
    for process in processes:  # as a service manager may do to the whole group
        with contextlib.suppress(psutil.NoSuchProcess):  # it has drained
            process.send_signal(signal.SIGTERM)
    wait_for(lambda: "draining" in log_of(servers.scheduler), "it drains")
    refused = {grpc.StatusCode.UNAVAILABLE}
    wait_for(lambda: {ending(stub) for stub in opened} == refused, "new calls are refused")
    for call, tokens in zip(calls, got, strict=True):
        assert tokens + tokens_of(call) == expected_tokens(PROMPT, 300, VOCAB)
    wait_for(lambda: servers.scheduler.exit_status is not None, "it ended")
    assert servers.scheduler.exit_status == 0
    assert ended(processes)


def ending(stub: pb_grpc.InferenceServiceStub) -> grpc.StatusCode:
    """Of a call of one token."""
    try:
        list(stub.Generate(request(1), timeout=SECONDS))
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_what_outlasts_the_drain_ends_unavailable_on_all_front_ends(start: Start, stubs) -> None:
    servers = start(2, "--drain-timeout", "0.3", worker=SLOW)
    calls = [stub.Generate(request(LONG)) for stub in stubs(servers.address, 8)]
    for call in calls:
        next(call)
    processes = servers.processes()
    os.kill(servers.scheduler.pid, signal.SIGINT)
    assert {code_of(call) for call in calls} == {grpc.StatusCode.UNAVAILABLE}
    assert {"drain" in call.details() for call in calls} == {True}
    wait_for(lambda: servers.scheduler.exit_status is not None, "it ended")
    assert servers.scheduler.exit_status == 0
    assert ended(processes)


@pytest.mark.parametrize("kills", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGKILL,)])
def test_front_ends_do_not_outlive_the_engines_process(start: Start, stubs, kills) -> None:
    servers = start(2, "--drain-timeout", "60", worker=SLOW)
    calls = [stub.Generate(request(LONG)) for stub in stubs(servers.address, 4)]
    for call in calls:
        next(call)
    processes = servers.processes()
    assert len(processes) == 2
    for number in kills:
        os.kill(servers.scheduler.pid, number)
        if number == signal.SIGTERM:
            wait_for(lambda: "draining" in log_of(servers.scheduler), "it heard")
    wait_for(lambda: servers.scheduler.exit_status is not None, "it ended")
    assert servers.scheduler.exit_status != 0
    assert {code_of(call) for call in calls} == {grpc.StatusCode.UNAVAILABLE}
    wait_for(lambda: ended(processes), "the front ends ended")
    if signal.SIGKILL in kills:
        assert {call.details() for call in calls} == {"the engine's process is gone"}


@pytest.mark.parametrize(("owns", "come"), [("1", ("2",)), ("2", ("0", "1"))])
def test_a_port_in_use_is_refused(tmp_path: Path, owns: str, come: tuple[str, ...]) -> None:
    worker = f"unix:{tmp_path}/none.sock"
    started = [start_scheduler(worker, "--frontends", owns)]
    try:
        address = wait_for(lambda: listening(started[0]), "the port is known")
        for count in come:
            started.append(start_scheduler(worker, "--frontends", count, "--listen", address))
        for other in started[1:]:
            wait_for(lambda other=other: other.exit_status is not None, "it ended")
            assert other.exit_status == 1
            assert f"cannot start: --listen {address}: cannot be bound" in other.tail()
        assert started[0].exit_status is None
        assert answers(address)
    finally:
        for child in started:
            child.stop(0, threading.Event())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--frontends", "2", "--listen", "unix:{}/s.sock"), "2 processes cannot share a unix"),
        (("--frontends", "-1"), "--frontends -1: give 0 to 64"),
        (("--frontends", "65"), "--frontends 65: give 0 to 64"),
        (("--frontends", "2", "--drain-timeout", "nan"), "--drain-timeout nan"),
        (("--frontends", "2", "--max-queue", "-1"), "max_queue is -1"),
        (("--frontends", "1", "--listen", "0.0.0.0:1"), "say --insecure"),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(tmp_path: Path, flags, message) -> None:
    given = [flag.format(tmp_path) for flag in flags]
    scheduler = start_scheduler(f"unix:{tmp_path}/none.sock", *given)
    wait_for(lambda: scheduler.exit_status is not None, "it ended")
    assert scheduler.exit_status == 1
    assert message in scheduler.tail()
    assert "Traceback" not in scheduler.tail()


def test_one_front_end_serves_a_unix_socket_and_its_successor_too(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/scheduler.sock"
    worker = f"unix:{tmp_path}/none.sock"
    scheduler = start_scheduler(worker, "--frontends", "1", "--listen", address)
    try:
        wait_for(lambda: answers(address), "it serves")
        (first,) = psutil.Process(scheduler.pid).children()
        first.kill()
        wait_for(lambda: first not in psutil.Process(scheduler.pid).children(), "it is gone")
        wait_for(lambda: answers(address), "another one serves")
        os.kill(scheduler.pid, signal.SIGTERM)
        wait_for(lambda: scheduler.exit_status is not None, "it ended")
        assert scheduler.exit_status == 0
        assert not (tmp_path / "scheduler.sock").exists()
    finally:
        scheduler.stop(0, threading.Event())


def answers(address: str) -> bool:
    with channel(address) as opened, contextlib.suppress(grpc.RpcError):
        pb_grpc.InferenceServiceStub(opened).GetStatus(pb.GetStatusRequest(), timeout=SECONDS)
        return True
    return False
