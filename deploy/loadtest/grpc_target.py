"""nanoserve over gRPC, from one process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from typing import Any

from deploy.loadtest.frames import LARGEST_WINDOW
from deploy.loadtest.grpc_exchange import PREFIX_LEN, GrpcExchange
from deploy.loadtest.http2 import Connection
from deploy.loadtest.plan import LoadPlan, Nanoserve
from deploy.loadtest.record import Record
from deploy.loadtest.target import CONNECT_SECONDS, Failed
from deploy.loadtest.workload import Request
from nanoserve.access import Access
from nanoserve.v1 import inference_pb2 as pb

_PATH = "/nanoserve.v1.InferenceService/Generate"
# So that a slow reader's pauses reach the server after a few messages.
_SLOW_WINDOW = 256  # bytes
_RETRY_SECONDS = 0.2


class GrpcTarget:
    """A lost connection is made again; requests meanwhile use the others, or fail."""

    def __init__(self, target: Nanoserve, plan: LoadPlan) -> None:
        self._access = target.access()
        self._address = self._access.address
        self._ssl = _ssl_context(self._access)
        self._plan = plan
        self._body = target.request()
        self._fast: list[Connection] = []
        self._slow: list[Connection] = []
        self._turn = itertools.count()
        self._connecting: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def open(self) -> None:
        slow = 1 if self._plan.slow_share else 0
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                count = self._plan.connections
                self._fast = [await self._connect(LARGEST_WINDOW) for _ in range(count)]
                self._slow = [await self._connect(_SLOW_WINDOW) for _ in range(slow)]
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"not within {CONNECT_SECONDS:g} s"
            raise Failed("CONNECT", f"no connection to {self._address}: {reason}") from None

    async def close(self) -> None:
        self._is_closing = True
        for task in self._connecting:
            task.cancel()
        for connection in (*self._fast, *self._slow):
            connection.close()

    def encode(self, request: Request, history: list[Any], request_id: str) -> bytes:
        message = pb.GenerateRequest(
            request_id=request_id,
            max_tokens=request.output_len,
            temperature=self._plan.temperature,
            seed=request.seed,
            ignore_eos=self._plan.ignore_eos,
        )
        if self._plan.turns > 1 and isinstance(request.prompt, str):
            for i, text in enumerate([*history, request.prompt]):
                message.chat.messages.add(role=("user", "assistant")[i % 2], content=text)
        elif isinstance(request.prompt, str):
            message.text = request.prompt
        else:
            for ids in (*history, request.prompt):
                message.token_ids.ids.extend(ids)
        message.MergeFrom(self._body)
        return (
            b"\x00"
            + message.ByteSize().to_bytes(PREFIX_LEN - 1, "big")
            + message.SerializeToString()
        )

    def begin(self, payload: bytes, record: Record) -> GrpcExchange:
        is_slow = record.request.is_slow
        connections = self._slow if is_slow else self._fast
        number = next(self._turn)
        connection = connections[number % len(connections)]
        if not connection.is_open:
            connection = next((c for c in connections if c.is_open), connection)
        exchange = GrpcExchange(connection, record, self._plan.slow_gap if is_slow else 0.0)
        connection.send(exchange, payload)
        return exchange

    async def _connect(self, window: int) -> Connection:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        connection = Connection(self._headers(), window, lambda: self._replace(connection, window))
        if self._address.startswith("unix:"):
            path = self._address.removeprefix("unix:")
            name = "localhost" if self._ssl else None
            await loop.create_unix_connection(
                lambda: connection, path, ssl=self._ssl, server_hostname=name
            )
        else:
            host, _, port = self._address.rpartition(":")
            await loop.create_connection(
                lambda: connection, host.strip("[]"), int(port), ssl=self._ssl
            )
        await connection.ready
        return connection

    def _replace(self, lost: Connection, window: int) -> None:
        connections = self._slow if window == _SLOW_WINDOW else self._fast
        if not self._is_closing and lost in connections:
            task = asyncio.ensure_future(self._reconnect(connections, lost, window))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _reconnect(
        self, connections: list[Connection], lost: Connection, window: int
    ) -> None:
        while True:
            await asyncio.sleep(_RETRY_SECONDS)
            with contextlib.suppress(OSError):
                connections[connections.index(lost)] = await self._connect(window)
                return

    def _headers(self) -> list[tuple[str, str]]:
        authority = "localhost" if self._address.startswith("unix:") else self._address
        return [
            (":method", "POST"),
            (":scheme", "https" if self._ssl else "http"),
            (":path", _PATH),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "nanoserve-loadtest"),
            ("grpc-timeout", f"{round(1000 * self._plan.request_timeout)}m"),
            *self._access.metadata,
        ]


def _ssl_context(access: Access) -> ssl.SSLContext | None:
    if not access.is_encrypted:
        return None
    roots = access.roots
    context = ssl.create_default_context(cadata=roots.decode("ascii") if roots else None)
    context.set_alpn_protocols(["h2"])
    return context
