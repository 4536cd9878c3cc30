"""/metrics over HTTP: what scrapers and their opposite get, and what requests notice of it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from nanoserve.v1.inference_pb2 import TokenIds
from scheduler.api.address import AddressError
from scheduler.api.metrics import SchedulerCollector
from scheduler.api.metrics_server import MOST_CONNECTIONS, MetricsServer
from tests.scheduler.api.scripted_engine import ScriptedEngine
from tests.waiting import SECONDS, wait_for

PROMPT = {"token_ids": TokenIds(ids=[1])}


class OneGauge(Collector):
    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("nanoserve_one", "One", 1)


class Broken(Collector):
    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("nanoserve_one", "One", 1 / 0)


@contextlib.contextmanager
def serving(
    collector: Collector, seconds: float = 5.0, pace: float = 0.001
) -> Iterator[MetricsServer]:
    server = MetricsServer("127.0.0.1:0", seconds=seconds, pace=pace)
    server.start(collector)
    yield server
    close(server)


def close(server: MetricsServer) -> None:
    """It waits a second for its thread, which the machine may keep waiting for longer."""
    server.close()
    wait_for(lambda: not server._thread.is_alive(), "its thread has ended")


def get(server: MetricsServer, path: str = "/metrics", method: str = "GET", **headers: str):
    """Status, headers and body."""
    connection = http.client.HTTPConnection(server.address, timeout=SECONDS)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()


def connected(server: MetricsServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def test_both_text_formats_are_served():
    with serving(OneGauge()) as server:
        status, headers, body = get(server)
        assert (status, headers["Content-Type"][:25]) == (200, "text/plain; version=0.0.4")
        assert "\nnanoserve_one 1.0\n" in body
        assert "process_cpu_seconds_total" in body
        accept = "application/openmetrics-text; version=1.0.0"
        status, headers, body = get(server, Accept=accept)
        assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert body.endswith("# EOF\n")


def test_other_requests_are_told_what_to_ask():
    with serving(OneGauge()) as server:
        assert get(server, "/metrics?x=1")[0] == 200
        assert get(server, "/")[0] == 404
        status, headers, _ = get(server, method="POST")
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
        status, headers, body = get(server, method="HEAD")
        assert (status, body) == (200, "")
        assert int(headers["Content-Length"]) > 100


@pytest.mark.parametrize(
    "sent", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics SSH\r\n\r\n", b"\xff\x00 a b\r\n\r\n"]
)
def test_what_is_no_http_gets_400(sent):
    with serving(OneGauge()) as server, connected(server) as scraper:
        scraper.sendall(sent)
        assert scraper.recv(100).startswith(b"HTTP/1.1 400 ")


def test_an_endless_request_is_cut_off():
    with serving(OneGauge()) as server, connected(server) as scraper:
        with contextlib.suppress(OSError):
            for _ in range(100):
                scraper.sendall(b"GET /metrics HTTP/1.1 " + b"x" * 4096)
            assert scraper.recv(100) == b""
        assert get(server)[0] == 200


def is_cut_off(scraper: socket.socket) -> bool:
    try:
        return scraper.recv(100) == b""
    except ConnectionResetError:  # it was before what it sent came
        return True


def test_scrapers_that_hang_are_cut_off():
    with serving(OneGauge(), seconds=0.5) as server:
        scrapers = [connected(server) for _ in range(MOST_CONNECTIONS - 1)]
        scrapers[0].sendall(b"GET /metr")
        assert all(map(is_cut_off, scrapers))
        for scraper in scrapers:
            scraper.close()


def test_while_scrapers_hang_the_others_are_served():
    with serving(OneGauge(), seconds=SECONDS) as server:
        scrapers = [connected(server) for _ in range(MOST_CONNECTIONS - 1)]
        scrapers[0].sendall(b"GET /metr")
        assert get(server)[0] == 200
        assert len(server._connections) >= len(scrapers)
        for scraper in scrapers:
            scraper.close()


def test_more_connections_than_the_limit_are_closed_and_later_ones_served():
    with serving(OneGauge(), seconds=SECONDS) as server:
        scrapers = [connected(server) for _ in range(MOST_CONNECTIONS)]
        wait_for(lambda: len(server._connections) == MOST_CONNECTIONS, "all are accepted")
        with connected(server) as another:
            assert another.recv(100) == b""
        for scraper in scrapers:
            scraper.close()
        wait_for(lambda: not server._connections, "all are let go")
        assert get(server)[0] == 200


def test_a_flood_of_scrapes_is_answered_one_at_a_time_at_its_pace():
    with serving(OneGauge(), pace=0.1) as server:
        start = time.monotonic()
        with ThreadPoolExecutor(8) as scrapers:
            assert {status for status, _, _ in scrapers.map(lambda _: get(server), range(8))} == {
                200
            }
        assert time.monotonic() - start >= 0.7


def test_a_collector_that_raises_costs_its_scrape_only(caplog):
    with serving(Broken()) as server:
        for _ in range(2):
            status, _, body = get(server)
            assert (status, body) == (500, "see the server's log\n")
    assert "ZeroDivisionError" in caplog.text


async def test_requests_go_on_beside_broken_collectors_and_hanging_scrapers(serve):
    served = await serve(ScriptedEngine([5] * 50 + [2]))
    with (
        serving(Broken()) as broken,
        serving(SchedulerCollector(served.engine)) as whole,
        connected(broken) as one,
        connected(whole) as two,
    ):
        for hanging in (one, two):
            hanging.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert (await asyncio.to_thread(get, broken))[0] == 500
        responses = await served.generate(**PROMPT)
        assert sum(len(response.token_ids) for response in responses) == 51
        _, _, body = await asyncio.to_thread(get, whole)
        assert "nanoserve_generation_tokens_total 51.0" in body


def test_a_port_in_use_is_an_error_that_names_it_and_port_0_is_any_free_one():
    with serving(OneGauge()) as first:
        assert not first.address.endswith(":0")
        with pytest.raises(
            AddressError, match=f"--metrics-listen {first.address}: cannot be bound"
        ):
            MetricsServer(first.address)
        assert get(first)[0] == 200


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("0.0.0.0:0", "--metrics-unprotected"),
        ("unix:/tmp/metrics", "give HOST:PORT"),
        ("9101", r"give HOST:PORT \(port 0 to 65535\) or off$"),
        ("127.0.0.1:65536", "0 to 65535"),
    ],
)
def test_an_address_that_cannot_be_is_refused(address, why):
    with pytest.raises(AddressError, match=f"--metrics-listen {address}.*{why}"):
        MetricsServer(address)


def test_a_host_that_is_no_name_is_refused():
    with pytest.raises(AddressError, match=r"--metrics-listen a\.\.b:0: cannot be bound: "):
        MetricsServer("a..b:0", unprotected=True)


def test_others_may_scrape_where_that_is_said():
    server = MetricsServer("0.0.0.0:0", unprotected=True)
    server.start(OneGauge())
    assert server.address.startswith("0.0.0.0:")
    assert get(server)[0] == 200
    server.close()


def test_it_is_closed_while_a_scraper_hangs():
    server = MetricsServer("127.0.0.1:0")
    server.start(OneGauge())
    with connected(server) as scraper:
        scraper.sendall(b"GET")
        assert get(server)[0] == 200
        close(server)
