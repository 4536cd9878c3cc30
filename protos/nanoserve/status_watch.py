"""A server's status again and again."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Protocol, Self

import grpc
import grpc.aio

from nanoserve import errors
from nanoserve.status import ServerStatus, status_from
from nanoserve.v1 import inference_pb2 as pb


class StatusStream(Protocol):
    """What a watch needs of its gRPC call."""

    def __next__(self) -> pb.WatchStatusResponse: ...

    def cancel(self) -> bool: ...


class StatusWatch:
    """The statuses of one server, as they come; iterate over it once.

    Ends when the server has drained; raises NanoserveError if the call fails. `close()`,
    from any thread, or the end of a `with` block ends the call; iteration then ends quietly.
    """

    def __init__(self, call: StatusStream) -> None:
        self._call = call
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ServerStatus:
        if self._closed:
            raise StopIteration
        try:
            return status_from(next(self._call).status)
        except grpc.RpcError as error:
            # The call closed from another thread while this one waited.
            if self._closed:
                raise StopIteration from None
            raise errors.from_rpc(error) from None

    def close(self) -> None:
        self._closed = True
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncStatusWatch:
    """The statuses of one server, as they come; iterate over it once.

    Ends when the server has drained; raises NanoserveError if the call fails. `close()`, the
    end of an `async with` block, or dropping the object ends the call; iteration then ends
    quietly.
    """

    def __init__(
        self, call: grpc.aio.UnaryStreamCall[pb.WatchStatusRequest, pb.WatchStatusResponse]
    ) -> None:
        self._call = call
        self._responses = call.__aiter__()
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ServerStatus:
        if self._closed:
            raise StopAsyncIteration
        try:
            return status_from((await anext(self._responses)).status)
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error) from None
        except asyncio.CancelledError:
            # Raised both when the call was closed and when this task is cancelled.
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise StopAsyncIteration from None
            raise

    def close(self) -> None:
        self._closed = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # The library's own call objects hold each other and are not freed in time.
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the call with it
            self._call.cancel()
