"""The worker's /metrics: what it tells, and that no scraper reaches the steps."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from nanoserve.v1 import worker_pb2
from tests.waiting import SECONDS
from tests.worker.held_executor import HeldExecutor
from tests.worker.running_worker import (
    RunningWorker,
    Stream,
    connect,
    running_worker,
)
from tests.worker.step_messages import first_step, int32, second_step
from tests.worker.worker_process import ROOT
from worker.address import ListenAddress
from worker.metrics_server import MetricsServer
from worker.simulate import SimulationOptions


@contextmanager
def metrics_server(**options: float) -> Iterator[MetricsServer]:
    server = MetricsServer(ListenAddress("127.0.0.1:0"), **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def address_of(server: MetricsServer) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").removesuffix("/metrics").split(":")
    return host, int(port)


def get(server: MetricsServer, path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    """Status, content type and text."""
    connection = http.client.HTTPConnection(*address_of(server), timeout=SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()


def values(text: str) -> dict[str, float]:
    """Samples by name, with their labels where they have any."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def ours(server: MetricsServer) -> dict[str, float]:
    status, _, text = get(server)
    assert status == 200, text
    return {
        name.removeprefix("nanoserve_worker_"): value
        for name, value in values(text).items()
        if name.startswith("nanoserve_worker_")
    }


@pytest.fixture
def worker() -> Iterator[RunningWorker]:
    with running_worker(options=SimulationOptions(step_ms=2.0)) as worker:
        yield worker
        assert worker.fatal == []


def test_the_metrics_are_the_workers_own_totals(worker: RunningWorker) -> None:
    with metrics_server() as server, worker.stub() as stub:
        server.show(worker.session)
        worker.session.statistics.load_seconds = 1.5
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        times = [stream.ask(first_step(incarnation)).times]
        times.append(stream.ask(second_step(incarnation)).times)
        stream.ask(worker_pb2.Step(step_id=9, incarnation=incarnation))
        stream.ask(worker_pb2.Step(step_id=3, incarnation=incarnation))
        shown = ours(server)
        simple = {name: value for name, value in shown.items() if "_seconds_" not in name}
        info = (
            f"device=simulated,dtype=float32,fingerprint={'f' * 64},incarnation={incarnation:016x}"
        )
        assert simple == {
            f"info{{{info}}}": 1,
            "live_rows": 2,
            "max_rows": 8,
            "refusing": 1,
            "pool_blocks": 40,
            "pool_bytes": 40 * 32,
            "steps_total": 2,
            "refused_steps_total{reason=bad_step}": 0,
            "refused_steps_total{reason=wrong_incarnation}": 0,
            "refused_steps_total{reason=wrong_step_id}": 1,
            "refused_steps_total{reason=follows_refused}": 1,
            "computed_tokens_total": 9,
            "sampled_tokens_total": 3,
            "connects_total": 1,
            "resets_total": 0,
            "incarnations_total": 1,
            "load_seconds": 1.5,
        }
        assert shown["step_forward_seconds_sum"] == pytest.approx(2 * 0.002)
        assert shown["step_forward_seconds_bucket{le=0.0015}"] == 0
        assert shown["step_forward_seconds_bucket{le=0.002}"] == 2
        assert shown["step_forward_seconds_bucket{le=+Inf}"] == 2
        assert shown["step_total_seconds_sum"] == pytest.approx(sum(t.total for t in times) / 1e9)
        assert shown["step_device_idle_seconds_sum"] == pytest.approx(times[1].idle / 1e9)
        counts = {n: v for n, v in shown.items() if n.endswith("_seconds_count")}
        assert counts == {
            "step_queue_seconds_count": 2,
            "step_input_seconds_count": 2,
            "step_forward_seconds_count": 2,
            "step_sample_seconds_count": 2,
            "step_total_seconds_count": 2,
            "step_device_idle_seconds_count": 1,
        }


def test_a_reset_is_seen_in_rows_refusals_and_incarnation(worker: RunningWorker) -> None:
    with metrics_server() as server, worker.stub() as stub:
        server.show(worker.session)
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.ask(second_step(incarnation, rows=int32(7, 1)))
        stub.Reset(worker_pb2.ResetRequest(epoch=5))
        shown = ours(server)
        names = ("live_rows", "refusing", "resets_total", "incarnations_total")
        assert [shown[name] for name in names] == [0, 0, 1, 2]
        assert not any(f"{incarnation:016x}" in name for name in shown)


def test_while_the_model_loads_there_is_the_process_alone() -> None:
    with metrics_server() as server:
        status, kind, text = get(server)
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert "process_resident_memory_bytes" in values(text)
        assert "nanoserve" not in text


def test_a_scraper_that_asks_for_openmetrics_gets_it(worker: RunningWorker) -> None:
    with metrics_server() as server:
        server.show(worker.session)
        _, kind, text = get(server, Accept="application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")


def test_there_is_nothing_else_than_metrics() -> None:
    with metrics_server() as server:
        paths = ("/", "/metrics/x", "/metrics?a=b")
        assert [get(server, path)[0] for path in paths] == [404, 404, 200]


class Broken(Collector):
    def collect(self) -> Iterator[Metric]:
        raise RuntimeError("a broken collector")


def test_a_collector_that_raises_costs_its_scrape_only(
    worker: RunningWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("worker.metrics_server.WorkerCollector", lambda session: Broken())
        broken = MetricsServer(ListenAddress("127.0.0.1:0"))
        broken.show(worker.session)
    broken.start()
    with contextlib.ExitStack() as stack, worker.stub() as stub:
        stack.callback(broken.stop)
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.ask(first_step(incarnation))
        for _ in range(3):
            status, _, text = get(broken)
            assert status == 500
            assert "the log says why" in text
        assert not stream.ask(second_step(incarnation)).HasField("refusal")
    assert "a broken collector" in caplog.text


def test_scrapers_that_hang_hold_up_neither_steps_nor_others(worker: RunningWorker) -> None:
    with metrics_server() as server, worker.stub() as stub, contextlib.ExitStack() as hanging:
        server.show(worker.session)
        for start in (b"", b"GET /metrics HTTP/1.1\r\nHost: "):
            for _ in range(3):
                scraper = hanging.enter_context(socket.create_connection(address_of(server)))
                scraper.sendall(start)
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.ask(first_step(incarnation))
        assert ours(server)["steps_total"] == 1
        stream.ask(second_step(incarnation))
        assert ours(server)["steps_total"] == 2


def test_scrapers_beyond_the_limit_are_turned_away() -> None:
    with metrics_server() as server, contextlib.ExitStack() as hanging:
        scrapers = [
            hanging.enter_context(socket.create_connection(address_of(server), timeout=SECONDS))
            for _ in range(9)
        ]
        assert scrapers[8].recv(1) == b""
        scrapers[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert scrapers[0].recv(12) == b"HTTP/1.0 200"


def test_a_scraper_that_takes_too_long_is_cut_off_though_it_goes_on_sending() -> None:
    with (
        metrics_server(seconds=1.0) as server,
        socket.create_connection(address_of(server), timeout=SECONDS) as scraper,
    ):
        scraper.settimeout(0.02)
        scraper.sendall(b"GET /metrics HTTP/1.1\r\nAccept: ")
        with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):  # noqa: PT012
            for _ in range(1000):
                scraper.sendall(b"a")
                with contextlib.suppress(TimeoutError):
                    scraper.recv(1)
        assert get(server)[0] == 200


def test_scrapers_without_end_are_answered_at_a_pace() -> None:
    with metrics_server(pace=0.1) as server:
        start = time.monotonic()
        assert [get(server)[0] for _ in range(4)] == [200] * 4
        assert time.monotonic() - start > 0.3


def test_a_scrape_waits_for_no_step() -> None:
    executor = HeldExecutor()
    with running_worker(executor) as worker, worker.stub() as stub, metrics_server() as server:
        server.show(worker.session)
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.send(first_step(incarnation))
        assert executor.launched.wait(60)
        shown = ours(server)
        assert (shown["steps_total"], shown["step_total_seconds_count"]) == (1, 0)
        executor.release.set()
        next(stream.call)
        assert ours(server)["step_total_seconds_count"] == 1


def test_the_address_is_freed_by_stop_and_taken_until_then() -> None:
    with metrics_server() as server:
        taken = ListenAddress("{}:{}".format(*address_of(server)))
        with pytest.raises(OSError, match="Address already in use"):
            MetricsServer(taken)
    again = MetricsServer(taken)
    again.stop()


def test_it_listens_on_ipv6_too() -> None:
    server = MetricsServer(ListenAddress("[::1]:0"))
    server.stop()
    assert server.url.startswith("http://[::1]:")


def test_what_runs_steps_knows_nothing_of_prometheus() -> None:
    code = "import sys, worker.process, worker.start, worker.simulate\n"
    code += "print('worker.statistics' in sys.modules, 'prometheus_client' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": "protos"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True False\n"
