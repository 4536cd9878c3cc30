"""A service's methods as gRPC's handlers, which pass on what cannot be decoded as None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from google.protobuf import message, message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from scheduler.api.errors import CallError
from scheduler.core.front_end import FailureKind

_Message = TypeVar("_Message", bound=message.Message)


def method_handlers(service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
    """The methods of `servicer`, each of which takes one request, or None in place of bytes
    that are none. The generated code's handlers end such a call with UNKNOWN and Python's
    text, before any method knows of it, and log a traceback each."""
    handlers = {m.name: _handler(m, getattr(servicer, m.name)) for m in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def decoded(request: _Message | None, kind: type[_Message]) -> _Message:
    """Raises CallError for None."""
    if request is None:
        name = kind.DESCRIPTOR.full_name
        raise CallError(
            FailureKind.INVALID,
            f"the request cannot be decoded as {name}: it is no such protobuf message, or a "
            "string in it is not UTF-8",
        )
    return request


def _handler(method: MethodDescriptor, behavior: Any) -> grpc.RpcMethodHandler[Any, Any]:
    kind = message_factory.GetMessageClass(method.input_type)
    response = message_factory.GetMessageClass(method.output_type)
    make = (
        grpc.unary_stream_rpc_method_handler
        if method.server_streaming
        else grpc.unary_unary_rpc_method_handler
    )
    return make(behavior, _decoder(kind), response.SerializeToString)


def _decoder(kind: type[message.Message]) -> Callable[[bytes], message.Message | None]:
    def decode(data: bytes) -> message.Message | None:
        try:
            return kind.FromString(data)
        except message.DecodeError:
            return None

    return decode
