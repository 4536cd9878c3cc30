"""How a call ends badly: gRPC statuses with google.rpc details, made in one place."""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2

from scheduler.core.front_end import Failure, FailureKind

# Bytes. The message travels three times in headers, of which peers accept 8 KiB: escaped
# to up to three times its length as the status, and in base64 twice in the details.
LONGEST_MESSAGE = 1024

_CODES = {
    FailureKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    FailureKind.DUPLICATE_ID: grpc.StatusCode.ALREADY_EXISTS,
    FailureKind.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    FailureKind.NO_ROOM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    FailureKind.DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    FailureKind.CANCELLED: grpc.StatusCode.CANCELLED,
    FailureKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    FailureKind.INTERNAL: grpc.StatusCode.INTERNAL,
}


class CallError(Exception):
    """Ends a call with the status that belongs to `kind`.

    `field` is the request field at fault. `retry_after` is in seconds.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        field: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = _CODES[kind]
        self.message = _shortened(message)
        self.field = field
        self.retry_after = retry_after

    @classmethod
    def of(cls, failure: Failure) -> CallError:
        return cls(failure.kind, failure.message, failure.field, failure.retry_after)

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """BadRequest names the field, RetryInfo says when to come back."""
        details: list[message.Message] = []
        if self.field:
            violation = error_details_pb2.BadRequest.FieldViolation(
                field=self.field, description=self.message
            )
            details.append(error_details_pb2.BadRequest(field_violations=[violation]))
        if self.retry_after is not None:
            delay = duration_pb2.Duration()
            delay.FromNanoseconds(int(self.retry_after * 1e9))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        if not details:
            return ()
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        return (("grpc-status-details-bin", status.SerializeToString()),)


def invalid(field: str, message: str) -> CallError:
    """A request that can never work; `message` names value, limit and what to do."""
    return CallError(FailureKind.INVALID, f"{field}: {message}", field)


def _shortened(message: str) -> str:
    text = message.encode()
    if len(text) <= LONGEST_MESSAGE:
        return message
    return text[: LONGEST_MESSAGE - 4].decode(errors="ignore") + " ..."
