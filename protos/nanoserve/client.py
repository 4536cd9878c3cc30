"""The synchronous client."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Protocol, Self, Unpack

import grpc

from nanoserve import errors
from nanoserve.access import Access
from nanoserve.channel import DEFAULT_ADDRESS
from nanoserve.output import Chunk, Completion, chunk_from, completion_from
from nanoserve.request import GenerateOptions, build_request, check_timeout
from nanoserve.status import ServerStatus, status_from
from nanoserve.status_watch import StatusWatch
from nanoserve.v1 import inference_pb2 as pb
from nanoserve.v1 import inference_pb2_grpc as pb_grpc


class Client:
    """A client of one server, over one channel; threads may share it.

    `address` is "host:port" or "unix:PATH". Making a client connects to nothing: the
    first call does.
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
        self._channel = access.channel()
        self._stub = pb_grpc.InferenceServiceStub(self._channel)

    def generate(
        self,
        prompt: str | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Starts a generation from text, `token_ids` or `messages`.

        `timeout` is in seconds, for the whole generation; None leaves it to the
        server's limit. Returns at once; what the server refuses is raised on
        iteration. Raises TypeError and ValueError for what cannot be sent.
        """
        check_timeout(timeout)
        request = build_request(prompt, options)
        return Generation(
            self._stub.Generate(request, timeout=timeout, metadata=self._metadata),
            request.request_id,
        )

    def status(
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
                self._stub.GetStatus(request, timeout=timeout, metadata=self._metadata)
            )
        except grpc.RpcError as error:
            raise errors.from_rpc(error) from None

    def watch_status(
        self,
        interval: float | None = None,
        *,
        rows: bool = False,
        block_map: bool = False,
        latencies: bool = False,
    ) -> StatusWatch:
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
        return StatusWatch(self._stub.WatchStatus(request, metadata=self._metadata))

    def close(self) -> None:
        """Closes the channel; generations still open end with CancelledError."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class ResponseStream(Protocol):
    """What a generation needs of its gRPC call."""

    def __next__(self) -> pb.GenerateResponse: ...

    def cancel(self) -> bool: ...


class Generation:
    """The chunks of one request, in order; iterate over it once.

    Raises NanoserveError if the request fails. `close()`, the end of a `with` block,
    or dropping the object cancels what the server is still doing for it.
    """

    def __init__(self, call: ResponseStream, request_id: str) -> None:
        self._call = call
        self._closed = False
        self.request_id = request_id

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if self._closed:
            raise StopIteration
        try:
            return chunk_from(next(self._call))
        except grpc.RpcError as error:
            # The call closed from another thread while this one waited.
            if self._closed:
                raise StopIteration from None
            raise errors.from_rpc(error) from None

    def collect(self) -> Completion:
        """Waits for the end; the chunks not yet taken, joined. Raises NanoserveError."""
        return completion_from(self.request_id, self)

    def close(self) -> None:
        """Cancels the request unless it has ended; iteration then ends quietly."""
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
