"""W3C trace context: what is taken over, what is ignored, and the spans made of a call."""

from __future__ import annotations

import builtins
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from nanoserve.v1.inference_pb2 import GenerateRequest, TokenIds
from scheduler.api.call_log import log
from scheduler.api.call_record import CallRecord
from scheduler.api.tracing import NoSpans, make_tracer, parse_trace_parent
from scheduler.api.tracing_otel import OtelTracer
from tests.scheduler.api.scripted_engine import ScriptedEngine

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{PARENT}-01"
ROOT = Path(__file__).resolve().parents[3]


def parse(*parents: str, state: tuple[str, ...] = ()):
    metadata = [("user-agent", "x"), *(("traceparent", parent) for parent in parents)]
    return parse_trace_parent([*metadata, *(("tracestate", value) for value in state)])


@pytest.mark.parametrize("header", [VALID, f"00-{TRACE}-{PARENT}-00", f"00-{TRACE}-{PARENT}-ff"])
def test_a_context_is_taken_over(header):
    found = parse(header)
    assert (found.trace_id, found.parent_id, str(found)) == (TRACE, PARENT, header)
    assert found.state == ()


@pytest.mark.parametrize("rest", ["", "-", "-more-of-it"])
def test_a_later_version_may_have_more(rest):
    assert parse(f"01-{TRACE}-{PARENT}-01{rest}").trace_id == TRACE


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x",
        VALID.upper(),
        VALID + "-",
        VALID + "-more",
        VALID + "\n",
        f" {VALID}",
        f"01-{TRACE}-{PARENT}-01more",
        f"ff-{TRACE}-{PARENT}-01",
        f"0-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}0-01",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE[:-1]}g-{PARENT}-01",
        f"00-{TRACE[:-1]}\u0661-{PARENT}-01",
    ],
)
def test_a_malformed_context_is_none(header):
    assert parse(header) is None


def test_no_context_and_two_of_them_are_none():
    assert parse() is None
    assert parse(VALID, VALID) is None
    assert parse_trace_parent(None) is None
    assert parse_trace_parent([("traceparent", VALID.encode())]) is None


@pytest.mark.parametrize(
    ("values", "pairs"),
    [
        (("a=1",), (("a", "1"),)),
        (("a=1 , t@v=x y",), (("a", "1"), ("t@v", "x y"))),
        (("a=1,b=x=y",), ()),
        (("a=1", "b=2"), (("a", "1"), ("b", "2"))),
        (("a=1,,b=2,",), (("a", "1"), ("b", "2"))),
        (("a=1,a=2",), ()),
        (("A=1",), ()),
        (("a",), ()),
        (("a=",), ()),
        (("a=é",), ()),
        ((",".join(f"k{i}=v" for i in range(33)),), ()),
        ((f"{'k' * 257}=v",), ()),
    ],
)
def test_a_malformed_state_is_dropped_without_the_context(values, pairs):
    found = parse(VALID, state=values)
    assert (found.trace_id, found.state) == (TRACE, pairs)


@pytest.mark.parametrize(("header", "trace_id"), [(VALID, TRACE), ("nonsense", None)])
async def test_the_trace_id_is_in_the_calls_line_and_a_wrong_one_harms_nothing(
    serve, caplog, header, trace_id
):
    caplog.set_level(logging.INFO, log.name)
    served = await serve(ScriptedEngine([5, 2]))
    request = GenerateRequest(token_ids=TokenIds(ids=[1]))
    call = served.stub.Generate(request, metadata=[("traceparent", header)])
    assert [list(response.token_ids) async for response in call][-1][-1] == 2
    (line,) = (record.fields for record in caplog.records if record.name == log.name)
    assert line.get("trace_id") == trace_id
    assert served.engine.submissions[0].trace_parent == (VALID if trace_id else "")


@pytest.fixture
def spans() -> tuple[OtelTracer, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OtelTracer(provider, "tiny"), exporter


RECORD = CallRecord(
    request_id="r1",
    outcome="stop",
    status="OK",
    prompt_tokens=5,
    output_tokens=4,
    total_seconds=0.75,
    queue_seconds=0.25,
    first_token_seconds=0.5,
    last_token_seconds=0.7,
    preemptions=1,
)


def test_a_call_is_a_span_in_its_clients_trace_with_its_parts_as_children(spans):
    tracer, exporter = spans
    trace = tracer.begin(parse(VALID, state=("a=1",)))
    assert trace.trace_id == TRACE
    assert trace.trace_parent.startswith(f"00-{TRACE}-")
    assert PARENT not in trace.trace_parent
    trace.end(RECORD)
    *parts, whole = exporter.get_finished_spans()
    assert (whole.name, whole.kind) == ("nanoserve.v1.InferenceService/Generate", SpanKind.SERVER)
    assert f"{whole.parent.span_id:016x}" == PARENT
    assert whole.context.trace_state.to_header() == "a=1"
    assert whole.attributes["rpc.response.status_code"] == "OK"
    assert whole.attributes["gen_ai.usage.output_tokens"] == 4
    assert whole.attributes["nanoserve.request_id"] == "r1"
    assert whole.status.status_code is StatusCode.UNSET
    times = {p.name: (p.start_time - parts[0].start_time, p.end_time - p.start_time) for p in parts}
    assert times == {
        "queue": (0, 250_000_000),
        "prefill": (250_000_000, 250_000_000),
        "decode": (500_000_000, 200_000_000),
    }
    assert {part.parent.span_id for part in parts} == {whole.context.span_id}
    assert {part.context.trace_id for part in parts} == {int(TRACE, 16)}


def test_a_call_without_a_context_begins_a_trace_and_a_failed_one_says_why(spans):
    tracer, exporter = spans
    trace = tracer.begin(None)
    trace.end(CallRecord("r", "internal", "INTERNAL", 0, 0, 0.1, error="why"))
    (span,) = exporter.get_finished_spans()
    assert span.parent is None
    assert trace.trace_id == f"{span.context.trace_id:032x}"
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "why")


def test_a_client_that_does_not_record_its_trace_gets_no_spans_and_is_passed_on(spans):
    tracer, exporter = spans
    trace = tracer.begin(parse(f"00-{TRACE}-{PARENT}-00"))
    trace.end(RECORD)
    assert exporter.get_finished_spans() == ()
    assert trace.trace_id == TRACE


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_a_place_for_them_there_are_no_spans(environment):
    assert isinstance(make_tracer(environment, "tiny"), NoSpans)


@pytest.mark.parametrize("protocol", [None, "grpc", "http/protobuf"])
def test_a_place_for_them_turns_spans_on(protocol):
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    if protocol:
        environment["OTEL_EXPORTER_OTLP_PROTOCOL"] = protocol
    tracer = make_tracer(environment, "tiny")
    assert isinstance(tracer, OtelTracer)
    tracer.close()


def test_a_protocol_that_is_not_spoken_stops_the_start():
    environment = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'"):
        make_tracer(environment, "tiny")


def test_without_the_package_it_warns_and_makes_no_spans(monkeypatch, caplog):
    real = builtins.__import__

    def no_otel(name, *more, **named):
        if name.startswith(("opentelemetry", "scheduler.api.tracing_otel")):
            raise ImportError(f"No module named {name!r}")
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", no_otel)
    tracer = make_tracer({"OTEL_TRACES_EXPORTER": "otlp"}, "tiny")
    assert isinstance(tracer, NoSpans)
    assert "OpenTelemetry is not installed (the extra `otel`)" in caplog.text


def test_nothing_of_opentelemetry_is_loaded_unless_asked_for():
    code = "import sys, json, scheduler.run; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = json.loads(done.stdout)
    assert "scheduler.api.tracing" in loaded
    assert not [name for name in loaded if name.startswith("opentelemetry")]


async def test_a_servers_calls_become_spans(serve, spans):
    tracer, exporter = spans
    served = await serve(ScriptedEngine([5, 2]))
    served.server._service._records._tracer = tracer
    call = served.stub.Generate(
        GenerateRequest(token_ids=TokenIds(ids=[1])), metadata=[("traceparent", VALID)]
    )
    _ = [response async for response in call]
    assert [span.name.rpartition(".")[2] for span in exporter.get_finished_spans()] == [
        "queue",
        "prefill",
        "decode",
        "InferenceService/Generate",
    ]
