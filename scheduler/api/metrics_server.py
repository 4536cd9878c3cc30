"""Serves /metrics to Prometheus on a thread of its own.

Whoever scrapes is not trusted: a connection has a deadline for all of it, there are few at a
time and so many a second, and what a request may weigh is bounded. So a scraper that hangs, or
thousands, cost the engine no more than a share of the interpreter's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import socket
import threading
from http.client import HTTPException, parse_headers

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from scheduler.api.address import AddressError, check_address

log = logging.getLogger(__name__)

CONNECTION_SECONDS = 5.0
MOST_CONNECTIONS = 16
# From one connection to the next; an answer takes some 5 ms of a CPU.
PACE_SECONDS = 0.05
_LONGEST_HEAD = 16 << 10  # bytes
_FLAG = "--metrics-listen"
_UNPROTECTED = (
    "and metrics have no encryption and ask nobody who he is: use 127.0.0.1, or, where only "
    "Prometheus can reach it, say --metrics-unprotected"
)


class MetricsServer:
    """Bound when it is made, so that a port in use stops the start; answers from `start` on."""

    def __init__(
        self,
        listen: str,
        unprotected: bool = False,
        seconds: float = CONNECTION_SECONDS,
        pace: float = PACE_SECONDS,
    ) -> None:
        """`listen` is HOST:PORT, which others can reach only if `unprotected`; `seconds` what a
        connection may take, `pace` the least time between two. Raises AddressError."""
        if listen.startswith("unix:"):
            raise AddressError(
                f"{_FLAG} {listen}: Prometheus knows no unix sockets; give HOST:PORT"
            )
        check_address(_FLAG, listen, "" if unprotected else _UNPROTECTED, "HOST:PORT or off")
        self._socket = _bind(listen)
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._seconds, self._pace = seconds, pace
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self, collector: Collector) -> None:
        self._registry.register(collector)
        self._thread.start()
        log.info("metrics at http://%s/metrics", self.address)

    def close(self) -> None:
        """Bounded by what an answer takes to make. May be called without a start."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(1.0)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            log.exception("/metrics is not served any more; requests are")
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        accepting = asyncio.create_task(self._accept())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((accepting, stopping), return_when=asyncio.FIRST_COMPLETED)
        tasks = (accepting, stopping, *self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._stopping.is_set():
            accepting.result()

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._socket)
            except OSError as error:
                log.warning("a scraper could not be accepted: %s", error)
                await asyncio.sleep(1.0)
                continue
            if len(self._connections) < MOST_CONNECTIONS:
                task = asyncio.create_task(self._converse(connection))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)
            else:
                connection.close()
            await asyncio.sleep(self._pace)

    async def _converse(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=_LONGEST_HEAD)
        try:
            async with asyncio.timeout(self._seconds):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
            pass  # the scraper's own fault
        finally:
            writer.transport.abort()

    def _answer(self, head: bytes) -> bytes:
        line, _, rest = head.partition(b"\r\n")
        words = line.decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response("400 Bad Request", b"HTTP/1.1 is spoken here\n")
        method, path = words[0], words[1].partition("?")[0]
        if path != "/metrics":
            return _response("404 Not Found", b"the metrics are at /metrics\n")
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"use GET\n", ("Allow: GET, HEAD",))
        try:
            accept = parse_headers(io.BytesIO(rest)).get("Accept", "")
        except HTTPException as error:
            return _response("400 Bad Request", f"{error!r}\n".encode())
        status, body, headers = self._metrics(accept)
        response = _response(status, body, headers)
        return response if method == "GET" else response[: len(response) - len(body)]

    def _metrics(self, accept: str) -> tuple[str, bytes, tuple[str, ...]]:
        try:
            encode, content_type = choose_encoder(accept)
            return "200 OK", encode(self._registry), (f"Content-Type: {content_type}",)
        except Exception:
            log.exception("the metrics cannot be made")
            return "500 Internal Server Error", b"see the server's log\n", ()


def _response(status: str, body: bytes, headers: tuple[str, ...] = ()) -> bytes:
    own = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close")
    return "\r\n".join((*own, *headers, "", "")).encode("latin-1") + body


def _bind(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            result = socket.socket(family, kind, protocol)
            with contextlib.ExitStack() as on_error:
                on_error.callback(result.close)
                # Not a port in use, but one whose last connections linger.
                result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                result.bind(address)
                result.listen(MOST_CONNECTIONS)
                result.setblocking(False)
                on_error.pop_all()
            return result
    except (OSError, UnicodeError) as error:  # the latter for a name that cannot be one
        raise AddressError(f"{_FLAG} {listen}: cannot be bound: {error}") from error
    raise AddressError(f"{_FLAG} {listen}: the name has no address")
