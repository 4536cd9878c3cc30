"""One Generate call on a connection."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from deploy.loadtest.http2 import Connection
from deploy.loadtest.record import Record
from deploy.loadtest.timeline import PROTOCOL
from nanoserve.v1 import inference_pb2 as pb

PREFIX_LEN = 5  # of a gRPC message: whether it is compressed, and its length
_STATUSES = {str(code.value[0]): code.name for code in grpc.StatusCode}
# gRPC over HTTP/2, "HTTP2 transport mapping"; all others mean INTERNAL.
_RESETS = {7: "UNAVAILABLE", 8: "CANCELLED", 11: "RESOURCE_EXHAUSTED", 12: "PERMISSION_DENIED"}


class GrpcExchange:
    """Fills the record as bytes come in. `slow_gap`: seconds that its reader waits after
    every message, by giving the server its window back only then; 0: none."""

    def __init__(self, connection: Connection, record: Record, slow_gap: float) -> None:
        self.stream_id = 0
        self._connection = connection
        self._record = record
        self._slow_gap = slow_gap
        self._read_at = 0.0
        self._partial = b""
        self._http_status = "200"

    def cancel(self) -> None:
        self._connection.cancel(self)

    def on_sent(self) -> None:
        self._record.mark_sent()

    def on_data(self, data: bytes) -> None:
        size = len(data)
        if self._partial:
            data = self._partial + data
        start, count = 0, 0
        while len(data) - start >= PREFIX_LEN and self._record.ended is None:
            end = start + PREFIX_LEN + int.from_bytes(data[start + 1 : start + PREFIX_LEN], "big")
            if end > len(data):
                break
            self._take(data[start], data[start + PREFIX_LEN : end])
            start, count = end, count + 1
        self._partial = data[start:]
        if self._slow_gap:
            self._read_at = max(self._read_at, time.monotonic()) + self._slow_gap * max(1, count)
            read = self._connection.read
            asyncio.get_running_loop().call_at(self._read_at, read, self, size)

    def on_headers(self, headers: dict[str, str], ended: bool) -> None:
        self._http_status = headers.get(":status", self._http_status)
        if not ended:
            return
        code = headers.get("grpc-status")
        if code is None and self._http_status != "200":
            self._record.end(f"HTTP {self._http_status}")
        elif code is None:
            self._record.end(PROTOCOL, "the stream ended without a status")
        elif code != "0":
            message = unquote(headers.get("grpc-message", ""))
            self._record.end(_STATUSES.get(code, f"CODE {code}"), message)
        elif not self._record.finished:
            self._record.end(PROTOCOL, "the stream ended without a finish reason")
        else:
            self._record.end("OK")

    def on_reset(self, error_code: int) -> None:
        status = _RESETS.get(error_code, "INTERNAL")
        self._record.end(status, f"the server reset the stream with HTTP/2 error {error_code}")

    def on_lost(self, reason: str) -> None:
        self._record.end("UNAVAILABLE", reason)

    def _take(self, compressed: int, message: bytes) -> None:
        record = self._record
        try:
            response = pb.GenerateResponse.FromString(message)
        except DecodeError:
            compressed = 1
        if compressed:
            self._connection.cancel(self)
            self._record.end(PROTOCOL, "a message could not be read")
            return
        record.message(len(response.token_ids), bool(response.text))
        if record.answer is not None:
            is_text = isinstance(record.request.prompt, str)
            record.answer.extend([response.text] if is_text else response.token_ids)
        if response.finish_reason:
            record.finished = True
            record.prompt_tokens = response.usage.prompt_tokens
            record.cached_tokens = response.usage.cached_tokens
            record.output_tokens = response.usage.output_tokens
        elif record.has_enough:
            self._connection.cancel(self)
            record.end("CANCELLED", cancelled=True)
