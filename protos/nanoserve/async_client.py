"""The asyncio client."""

from __future__ import annotations

import asyncio
import contextlib
import os
from types import TracebackType
from typing import Self, Unpack

import grpc
import grpc.aio

from nanoserve import errors
from nanoserve.access import Access
from nanoserve.channel import DEFAULT_ADDRESS
from nanoserve.output import Chunk, Completion, chunk_from, completion_from
from nanoserve.request import GenerateOptions, build_request, check_timeout
from nanoserve.status import ServerStatus, status_from
from nanoserve.status_watch import AsyncStatusWatch
from nanoserve.v1 import inference_pb2 as pb
from nanoserve.v1 import inference_pb2_grpc as pb_grpc


class AsyncClient:
    """A client of one server, over one channel, for the running event loop.

    `address` is "host:port" or "unix:PATH". Make it inside the loop that uses it; it
    connects with its first call.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls_ca: str | os.PathLike[str] | None = None,
        token: str | None = None,
    ) -> None:
        """With `tls_ca`, a file of PEM certificates or "system" for those that gRPC brings, the
        channel is encrypted and the server must prove who it is. `token` goes with each call.
        Raises ValueError for an address of another form, for a file that cannot be used, and for
        a token without encryption on an address beyond this machine."""
        access = Access(address, tls_ca, token)
        self._metadata = access.metadata
        self._channel = access.aio_channel()
        self._stub = pb_grpc.InferenceServiceStub(self._channel)

    def generate(
        self,
        prompt: str | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGeneration:
        """Starts a generation from text, `token_ids` or `messages`.

        `timeout` is in seconds, for the whole generation; None leaves it to the
        server's limit. Returns at once; what the server refuses is raised on
        iteration. Raises TypeError and ValueError for what cannot be sent.
        """
        check_timeout(timeout)
        request = build_request(prompt, options)
        return AsyncGeneration(
            self._stub.Generate(request, timeout=timeout, metadata=self._metadata),
            request.request_id,
        )

    async def status(
        self,
        *,
        rows: bool = False,
        block_map: bool = False,
        latencies: bool = False,
        timeout: float | None = 10,
    ) -> ServerStatus:
        """What the server serves and how loaded it is, and on request the running rows, who
        holds each block, and latencies. Raises NanoserveError, and ValueError for a timeout that
        cannot be sent."""
        check_timeout(timeout)
        request = pb.GetStatusRequest(
            include_rows=rows, include_block_map=block_map, include_latencies=latencies
        )
        try:
            return status_from(
                await self._stub.GetStatus(request, timeout=timeout, metadata=self._metadata)
            )
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error) from None

    def watch_status(
        self,
        interval: float | None = None,
        *,
        rows: bool = False,
        block_map: bool = False,
        latencies: bool = False,
    ) -> AsyncStatusWatch:
        """The status at once and every `interval` seconds, 0.1 to 60 (None: 1), until the
        watch is closed or the server has drained.

        Returns at once; what the server refuses is raised on iteration.
        """
        request = pb.WatchStatusRequest(
            interval_seconds=interval,
            include_rows=rows,
            include_block_map=block_map,
            include_latencies=latencies,
        )
        return AsyncStatusWatch(self._stub.WatchStatus(request, metadata=self._metadata))

    async def close(self) -> None:
        """Closes the channel and cancels the generations still open."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncGeneration:
    """The chunks of one request, in order; iterate over it once.

    Raises NanoserveError if the request fails. `close()`, the end of an `async with`
    block, dropping the object, or cancelling the task that waits for a chunk cancels
    what the server is still doing for it.
    """

    def __init__(
        self,
        call: grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse],
        request_id: str,
    ) -> None:
        self._call = call
        self._responses = call.__aiter__()
        self._closed = False
        self.request_id = request_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._closed:
            raise StopAsyncIteration
        try:
            return chunk_from(await anext(self._responses))
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error) from None
        except asyncio.CancelledError:
            # Raised both when the call was closed and when this task is cancelled.
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise StopAsyncIteration from None
            raise

    async def collect(self) -> Completion:
        """Waits for the end; the chunks not yet taken, joined. Raises NanoserveError."""
        return completion_from(self.request_id, [chunk async for chunk in self])

    def close(self) -> None:
        """Cancels the request unless it has ended; iteration then ends quietly."""
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
