"""W3C trace context of a call, and spans where OpenTelemetry is installed and asked for."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from scheduler.api.call_record import CallRecord

log = logging.getLogger(__name__)

Metadata = Iterable[tuple[str, str | bytes]]

# https://www.w3.org/TR/trace-context/: version, trace id, parent id, flags; a later version
# may have more behind a dash.
_TRACE_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE_KEY = re.compile(
    r"[a-z0-9][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}"
)
_STATE_VALUE = re.compile(r"[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_MOST_STATES = 32


@dataclass(frozen=True, slots=True)
class TraceParent:
    """Where in its client's trace a call belongs. Ids in lower-case hexadecimal."""

    trace_id: str
    parent_id: str
    flags: int  # 1: the client records its trace
    state: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.parent_id}-{self.flags:02x}"


class CallTrace(Protocol):
    """The trace of one call. `trace_id` is empty if there is none."""

    @property
    def trace_id(self) -> str: ...

    @property
    def trace_parent(self) -> str:
        """What to pass on, in the header's form; empty if there is none."""
        ...

    def end(self, record: CallRecord) -> None: ...


class Tracer(Protocol):
    def begin(self, parent: TraceParent | None) -> CallTrace:
        """A call has just come."""
        ...

    def close(self) -> None:
        """Sends what is left; may take seconds if nobody takes it."""
        ...


@dataclass(frozen=True, slots=True)
class _PassedOn:
    """Without spans: the client's context as it came."""

    trace_id: str
    trace_parent: str

    def end(self, record: CallRecord) -> None:
        pass


_NO_TRACE = _PassedOn("", "")


class NoSpans:
    """The tracer without OpenTelemetry."""

    def begin(self, parent: TraceParent | None) -> CallTrace:
        return _PassedOn(parent.trace_id, str(parent)) if parent else _NO_TRACE

    def close(self) -> None:
        pass


def parse_trace_parent(metadata: Metadata | None) -> TraceParent | None:
    """None if there is none, or if it is malformed: then a call has no context, and is no
    worse for it. A malformed tracestate is dropped alone."""
    parents, states = [], []
    for key, value in metadata or ():
        if key == "traceparent":
            parents.append(value)
        elif key == "tracestate":
            states.append(value)
    if len(parents) != 1 or not isinstance(parents[0], str):
        return None
    match = _TRACE_PARENT.fullmatch(parents[0])
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not trace_id.strip("0") or not parent_id.strip("0"):
        return None
    return TraceParent(trace_id, parent_id, int(flags, 16), _parse_state(states))


def _parse_state(values: Iterable[str | bytes]) -> tuple[tuple[str, str], ...]:
    joined = ",".join(value for value in values if isinstance(value, str))
    members = [member.strip(" \t") for member in joined.split(",")]
    pairs = [tuple(member.partition("=")[::2]) for member in members if member]
    wrong = any(
        not _STATE_KEY.fullmatch(key) or not _STATE_VALUE.fullmatch(value) for key, value in pairs
    )
    if wrong or len(pairs) > _MOST_STATES or len({key for key, _ in pairs}) < len(pairs):
        return ()
    return tuple((key, value) for key, value in pairs)


def make_tracer(environment: Mapping[str, str], model: str) -> Tracer:
    """Spans if the standard variables of OpenTelemetry name a place for them."""
    if not _spans_wanted(environment):
        return NoSpans()
    try:
        from scheduler.api.tracing_otel import OtelTracer
    except ImportError as error:
        log.warning("no spans, as OpenTelemetry is not installed (the extra `otel`): %s", error)
        return NoSpans()
    return OtelTracer.from_environment(environment, model)


def _spans_wanted(environment: Mapping[str, str]) -> bool:
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter == "none":
        return False
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return exporter == "otlp" or any(environment.get(name) for name in names)
