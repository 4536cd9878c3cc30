"""Spans on their way to a collector, over the protocol that collectors speak."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from nanoserve.v1.inference_pb2 import TokenIds
from tests.scheduler.api.scripted_engine import ScriptedEngine
from tests.waiting import SECONDS, until, wait_for


class Collector(ThreadingHTTPServer):
    """Takes spans over HTTP. `answering` cleared: it takes the request and stays silent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answering = threading.Event()
        self.answering.set()
        self.asked = threading.Event()
        self.requests: list[ExportTraceServiceRequest] = []
        self._others = set(threading.enumerate())

    def has_exporter(self) -> bool:
        """Whether a tracer that was made after this still runs."""
        threads = set(threading.enumerate()) - self._others
        return any("Otel" in thread.name for thread in threads)

    def spans(self) -> list:
        return [
            (resource.resource, span)
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.server.asked.set()
        self.server.answering.wait(SECONDS)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch) -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")  # milliseconds
        yield server
        server.answering.set()
        # Whom nobody answers goes on to log that, for seconds and in whatever test comes next.
        wait_for(lambda: not server.has_exporter(), "all spans are sent")
        server.shutdown()


async def test_what_is_left_is_sent_when_the_server_stops(serve, collector):
    served = await serve(ScriptedEngine([5, 2]))
    await served.generate(token_ids=TokenIds(ids=[7]), request_id="r1")
    assert collector.requests == []
    await served.server.stop()
    await until(lambda: collector.requests)
    spans = {span.name: span for _, span in collector.spans()}
    whole = spans["nanoserve.v1.InferenceService/Generate"]
    assert {spans[name].parent_span_id for name in ("queue", "prefill", "decode")} == {
        whole.span_id
    }
    values = {a.key: a.value.string_value or a.value.int_value for a in whole.attributes}
    assert values["nanoserve.request_id"] == "r1"
    assert values["gen_ai.request.model"] == "tiny"
    assert (values["gen_ai.usage.input_tokens"], values["gen_ai.usage.output_tokens"]) == (1, 2)
    resource, _ = collector.spans()[0]
    names = {a.key: a.value.string_value for a in resource.attributes}
    assert names["service.name"] == "nanoserve"


async def test_a_collector_that_hangs_holds_up_no_call_and_no_stop(serve, collector, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    collector.answering.clear()
    served = await serve(ScriptedEngine([5, 2]))
    await served.generate(token_ids=TokenIds(ids=[7]))
    await asyncio.to_thread(collector.asked.wait, SECONDS)
    for _ in range(20):
        responses = await served.generate(token_ids=TokenIds(ids=[7]))
        assert responses[-1].finish_reason
    await asyncio.wait_for(served.server.stop(), SECONDS / 2)
    assert collector.has_exporter(), "it is left behind"


async def test_the_services_name_is_the_operators_where_he_gives_one(serve, collector, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    served = await serve(ScriptedEngine([2]))
    await served.generate(token_ids=TokenIds(ids=[7]))
    await served.server.stop()
    await until(lambda: collector.requests)
    resource, _ = collector.spans()[0]
    assert ("service.name", "mine") in {(a.key, a.value.string_value) for a in resource.attributes}
