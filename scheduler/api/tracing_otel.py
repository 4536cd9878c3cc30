"""Spans of calls by OpenTelemetry, whose packages are the extra `otel`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.span import TraceFlags, TraceState

from scheduler.api.tracing import TraceParent

if TYPE_CHECKING:
    from scheduler.api.call_record import CallRecord

_SERVICE = "nanoserve.v1.InferenceService"


class OtelTracer:
    """One span for each call, with its times of queue, prefill and decode as children. They
    are written when the call has ended, and sent by a thread of the SDK that drops what it
    cannot keep up with: a call never waits."""

    def __init__(self, provider: TracerProvider, model: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("nanoserve.scheduler")
        self._model = model

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], model: str) -> OtelTracer:
        """The SDK reads sampler, resource, place and headers from the OTEL_ variables."""
        named = SERVICE_NAME in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
        named = named or bool(environment.get("OTEL_SERVICE_NAME"))
        resource = Resource.create(None if named else {SERVICE_NAME: "nanoserve"})
        # How long the end of the process waits is up to its server.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(_exporter(environment)))
        return cls(provider, model)

    def begin(self, parent: TraceParent | None) -> OtelTrace:
        span = self._tracer.start_span(
            f"{_SERVICE}/Generate", context=_context(parent), kind=SpanKind.SERVER
        )
        return OtelTrace(self._tracer, span, self._model)

    def close(self) -> None:
        self._provider.shutdown()


class OtelTrace:
    """The span of one call."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span, model: str) -> None:
        self._tracer = tracer
        self._span = span
        self._model = model
        self._start_ns = time.time_ns()

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def trace_parent(self) -> str:
        context = self._span.get_span_context()
        return f"00-{self.trace_id}-{context.span_id:016x}-{context.trace_flags:02x}"

    def end(self, record: CallRecord) -> None:
        span = self._span
        if not span.is_recording():
            return
        span.set_attributes(_attributes(record, self._model))
        if record.status in ("INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED"):
            # The server's errors, by the conventions for spans of RPCs.
            span.set_status(Status(StatusCode.ERROR, record.error))
        begin = 0.0
        for name, end in (
            ("queue", record.queue_seconds),
            ("prefill", record.first_token_seconds),
            ("decode", record.last_token_seconds),
        ):
            if end is None:
                break
            self._child(name, begin, end)
            begin = end
        span.end(self._at(record.total_seconds))

    def _child(self, name: str, begin: float, end: float) -> None:
        context = trace.set_span_in_context(self._span, Context())
        child = self._tracer.start_span(name, context=context, start_time=self._at(begin))
        child.end(self._at(end))

    def _at(self, seconds: float) -> int:
        """Nanoseconds since the Unix epoch."""
        return self._start_ns + round(seconds * 1e9)


def _context(parent: TraceParent | None) -> Context:
    if parent is None:
        return Context()
    remote = SpanContext(
        trace_id=int(parent.trace_id, 16),
        span_id=int(parent.parent_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(parent.flags),
        trace_state=TraceState(parent.state),
    )
    return trace.set_span_in_context(NonRecordingSpan(remote), Context())


def _attributes(record: CallRecord, model: str) -> dict[str, str | int]:
    """Names of OpenTelemetry's conventions where there are any. No text."""
    return {
        "rpc.system": "grpc",
        "rpc.service": _SERVICE,
        "rpc.method": "Generate",
        "rpc.response.status_code": record.status,
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "nanoserve.request_id": record.request_id,
        "nanoserve.outcome": record.outcome,
        "nanoserve.preemptions": record.preemptions,
        "nanoserve.recomputed_tokens": record.recomputed_tokens,
        "nanoserve.cached_tokens": record.cached_tokens,
    }


def _exporter(environment: Mapping[str, str]) -> SpanExporter:
    """Raises ValueError for a protocol that is not spoken."""
    name = "OTEL_EXPORTER_OTLP_PROTOCOL"
    specific = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
    protocol = environment.get(specific) or environment.get(name) or "http/protobuf"
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as GrpcExporter,
        )

        return GrpcExporter()
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter as HttpExporter,
        )

        return HttpExporter()
    raise ValueError(f"{name} is {protocol!r}; use grpc or http/protobuf")
