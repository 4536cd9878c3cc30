"""What a call may raise: one exception per kind of gRPC status, with its details."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from nanoserve.connection_trouble import trouble

_DETAILS_KEY = "grpc-status-details-bin"
# What gRPC's library says of a call that had come in but not been taken when its server stopped.
# Calls that were cancelled by anybody have other words.
_STOPPED = "CANCELLED"
# And of a request that its server's library does not even read.
_TOO_LARGE = re.compile(r"SERVER: .*message larger than max \((\d+) vs\. (\d+)\)")


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A request field at fault, and what is wrong with it."""

    field: str
    description: str


class NanoserveError(Exception):
    """A call failed. `str()` is "CODE: message".

    `code` is the gRPC status code; `violations` name the fields at fault, if the
    server named any; `retry_after` is in seconds, if the server gave one.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        violations: tuple[FieldViolation, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.violations = violations
        self.retry_after = retry_after

    @property
    def unreachable(self) -> bool:
        """Whether no connection could be made: no server was there to fail the call."""
        return self.code is grpc.StatusCode.UNAVAILABLE and self.message.startswith(
            "failed to connect"
        )


class InvalidRequestError(NanoserveError):
    """INVALID_ARGUMENT, or RESOURCE_EXHAUSTED for a message beyond what the server reads: the
    request can never work as it stands."""


class DuplicateRequestError(NanoserveError):
    """ALREADY_EXISTS: a request with this request_id is running or waiting."""


class OverloadedError(NanoserveError):
    """RESOURCE_EXHAUSTED: the server has no room; try again after `retry_after`."""


class DeadlineExceededError(NanoserveError):
    """DEADLINE_EXCEEDED: the call's timeout passed, or the server's own limit."""


class CancelledError(NanoserveError):
    """CANCELLED, by other means than closing the generation."""


class UnavailableError(NanoserveError):
    """UNAVAILABLE: no server there, or none that certificates allow, no worker yet, or the
    server is draining."""


class UnauthenticatedError(NanoserveError):
    """UNAUTHENTICATED: the server wants a token, or another one."""


class ServerError(NanoserveError):
    """INTERNAL, or any other status: the fault is the server's."""


_KINDS: dict[grpc.StatusCode, type[NanoserveError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.ALREADY_EXISTS: DuplicateRequestError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
}


class FailedCall(Protocol):
    """What the sync and the asyncio errors of gRPC have in common."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...


def from_rpc(failed: FailedCall) -> NanoserveError:
    """The exception for a failed call."""
    violations: list[FieldViolation] = []
    retry_after = None
    for detail in _status_of(failed).details:
        bad_request = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(bad_request):
            violations += [
                FieldViolation(violation.field, violation.description)
                for violation in bad_request.field_violations
            ]
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    code, message = failed.code(), trouble(failed.details()) or failed.details() or ""
    if code is grpc.StatusCode.CANCELLED and message == _STOPPED:
        code, message = grpc.StatusCode.UNAVAILABLE, "the server stopped before it took the call"
    kind = _KINDS.get(code, ServerError)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and (large := _TOO_LARGE.match(message)):
        kind = InvalidRequestError
        message = f"the request has {large[1]} bytes, and the server reads at most {large[2]}"
    return kind(code, message, tuple(violations), retry_after)


def _status_of(failed: FailedCall) -> status_pb2.Status:
    """The google.rpc.Status in the trailing metadata; an empty one if there is none."""
    status = status_pb2.Status()
    # Failures made by the library itself have no trailing metadata, or None.
    metadata = getattr(failed, "trailing_metadata", lambda: None)()
    for key, value in metadata or ():
        if key == _DETAILS_KEY:
            try:
                status.ParseFromString(value)
            except DecodeError:
                return status_pb2.Status()
    return status
