"""Serves /metrics over HTTP, on threads of its own."""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from worker.address import ListenAddress
from worker.metrics import WorkerCollector
from worker.session import Session

log = logging.getLogger(__name__)

# Connections at a time, each with a thread; one more is closed at once.
_MOST_CLIENTS = 8
_CLIENT_SECONDS = 5.0
# From one connection to the next: answers take no more than a small share of the interpreter's
# time, one taking some 2 ms, however many are asked for.
_PACE_SECONDS = 0.05
# How soon a client that is out of time, or `stop`, is noticed.
_POLL_SECONDS = 0.1


class MetricsServer:
    """Bound when made; serves from `start` on, the session from `show` on, and what the kernel
    counts of the process at any time. A collector that raises costs its scrape only: an answer
    of 500 and a line in the log. A client may take `seconds` for all of its request, and comes
    `pace` seconds after another at the earliest."""

    def __init__(
        self,
        address: ListenAddress,
        seconds: float = _CLIENT_SECONDS,
        pace: float = _PACE_SECONDS,
    ) -> None:
        """Raises OSError or UnicodeError if the address cannot be bound."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._server = _HTTPServer(address, self._registry, seconds, pace)
        self._address = address
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="metrics", daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://{self._address.with_port(self._server.server_address[1])}/metrics"

    def start(self) -> None:
        self._thread.start()

    def show(self, session: Session) -> None:
        self._registry.register(WorkerCollector(session))

    def stop(self) -> None:
        """Ends the server; an open connection is left to its thread."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False  # two workers on one port would share its scrapes

    def __init__(
        self, address: ListenAddress, registry: CollectorRegistry, seconds: float, pace: float
    ) -> None:
        self.registry = registry
        self.address_family = address.family
        self._seconds, self._pace = seconds, pace
        # When each open connection is cut off. Only the accepting thread adds to it.
        self._deadlines: dict[socket.socket, float] = {}
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own asks the name service for this machine's name.
        socketserver.TCPServer.server_bind(self)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.5)  # out of file descriptors, say: serve_forever tries again at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        self._admit(request, client_address)
        time.sleep(self._pace)

    def _admit(self, request: Any, client_address: Any) -> None:
        if len(self._deadlines) == _MOST_CLIENTS:
            self.shutdown_request(request)
            return
        self._deadlines[request] = time.monotonic() + self._seconds
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._deadlines.pop(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._deadlines.pop(request)

    def service_actions(self) -> None:
        """Called by serve_forever, after every request and poll."""
        for request, deadline in self._deadlines.copy().items():
            if time.monotonic() > deadline:
                with contextlib.suppress(OSError):  # it has just been closed
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        log.debug("a scrape from %s broke off", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _HTTPServer

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, explain="there is /metrics only")
            return
        try:
            encode, content_type = choose_encoder(self.headers.get("Accept") or "")
            text = encode(self.server.registry)
        except Exception:
            log.exception("the metrics cannot be told")
            self.send_error(500, explain="the log says why")
            return
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
