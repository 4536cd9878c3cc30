"""The gRPC server towards clients, from its start to its drained end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import grpc
from grpc_reflection.v1alpha import reflection

from nanoserve import tls
from scheduler.api.address import AddressError, clear_unix_path
from scheduler.api.authentication import TokenCheck
from scheduler.api.call_log import log_call
from scheduler.api.call_records import CallRecords
from scheduler.api.health import HEALTH, INFERENCE, HealthService
from scheduler.api.method_handlers import method_handlers
from scheduler.api.protection import Protection
from scheduler.api.service import InferenceService, ServedModel
from scheduler.api.stop_signals import take_over
from scheduler.api.token_hashes import load_hashes
from scheduler.api.tracing import make_tracer
from scheduler.core.front_end import EnginePort, EngineStatus, EventBatch, FrontEnd

log = logging.getLogger(__name__)

OPTIONS: tuple[tuple[str, int], ...] = (
    # A prompt of several megabytes is refused by the checks, with a reason; 16 MiB is
    # what one message may cost in memory.
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    # Clients may ping once a second while a call is silent, and while there is none.
    # (min_recv_ping_interval_without_data_ms, the documented name, has no effect.)
    ("grpc.http2.min_ping_interval_without_data_ms", 900),
    ("grpc.keepalive_permit_without_calls", 1),
    # A client whose machine vanished must not keep its blocks: it is noticed within 40 s.
    # Without ping_timeout_ms the answer to a ping is awaited for 60 s, whatever
    # keepalive_timeout_ms says.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
)
# Streams that the engine failed at the drain's end still have to tell their clients, on a machine
# that is busy too; what it did not fail by then is failed here and cut.
_LAST_WORDS_SECONDS = 2.0
_CUT_SECONDS = 0.4
_ENGINE_STOP_SECONDS = 0.4
_LAST_SPANS_SECONDS = 0.4


@dataclass(frozen=True)
class ServerConfig:
    """`drain_timeout` and `max_request_seconds` are in seconds. `max_queue` is the engine's
    limit, by which calls are refused before their prompts are encoded. `log_text`: the
    lines in the log about calls have their prompts and outputs. `share_port`: whoever
    started this process holds the port, for it to be shared with others of his. The engine
    knows requests by handles that count up from `first_handle`, among others' by theirs."""

    listen: str
    protection: Protection = field(default_factory=Protection)
    drain_timeout: float = 30.0
    max_request_seconds: float = 3600.0
    max_queue: int | None = None
    max_queue_wait: float | None = None
    max_streams: int = 1024
    log_text: bool = False
    share_port: bool = False
    first_handle: int = 1

    def __post_init__(self) -> None:
        self.protection.check(self.listen)
        if not 1 <= self.max_streams < 2**31:
            raise ValueError(
                f"--max-streams-per-connection {self.max_streams}: must be from 1 to {2**31 - 1}"
            )
        if not 0 <= self.drain_timeout < float("inf"):
            raise ValueError(
                f"--drain-timeout {self.drain_timeout}: must be 0 seconds or more, finite"
            )
        if not 0 < self.max_request_seconds < float("inf"):
            raise ValueError(
                f"--max-request-seconds {self.max_request_seconds}: must be more than 0 seconds, "
                "finite"
            )


class RunningEngine(EnginePort, Protocol):
    """An engine that the server starts and stops."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class ApiServer:
    """Serves inference, health and reflection for one engine. Made and used on one event
    loop; the engine calls it in turns of its own, on any thread."""

    def __init__(
        self,
        config: ServerConfig,
        model: ServedModel,
        make_engine: Callable[[FrontEnd], RunningEngine],
    ) -> None:
        """Raises FileError for a certificate, key or token file that cannot be used."""
        self.address = config.listen
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._tls = _load_tls(config.protection)
        self._engine = make_engine(self)
        self._tracer = make_tracer(os.environ, model.name)
        records = CallRecords(self._tracer, [log_call], config.log_text)
        self._token_check = _load_token_check(config.protection, records)
        self._service = InferenceService(
            model,
            self._engine,
            config.max_request_seconds,
            config.max_queue,
            records,
            config.max_queue_wait,
            config.first_handle,
        )
        self._health = HealthService(self._engine)
        # Unless told to, a server on a port in use must fail, not share it silently.
        share_port = ("grpc.so_reuseport", int(config.share_port))
        streams = ("grpc.max_concurrent_streams", config.max_streams)
        self._server = grpc.aio.server(
            interceptors=[self._token_check] if self._token_check else [],
            options=(*OPTIONS, share_port, streams),
        )
        services = ((INFERENCE, self._service), (HEALTH, self._health))
        self._server.add_generic_rpc_handlers([method_handlers(*each) for each in services])
        names = (INFERENCE.full_name, HEALTH.full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self._keep_fresh: asyncio.Task[None] | None = None

    # Called in turns of the engine's loop, on any thread: one wake-up of ours per batch.

    def deliver(self, batch: EventBatch) -> None:
        self._call_soon(lambda: self._service.deliver(batch))

    def status_changed(self, status: EngineStatus) -> None:
        log.info("ready" if status.ready else f"not ready: {status.reason}")
        self._call_soon(self._readiness_changed)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        # After the loop's end nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    # Called on the loop.

    def _readiness_changed(self) -> None:
        self._health.refresh()
        self._service.readiness_changed()

    async def start(self) -> None:
        """Binds and starts the engine. Raises AddressError if the address is not free."""
        clear_unix_path(self.address)
        try:
            port = self._add_port()
        except RuntimeError as error:
            raise AddressError(f"--listen {self.address}: cannot be bound: {error}") from error
        if not self.address.startswith("unix:"):
            self.address = f"{self.address.rpartition(':')[0]}:{port}"
        await self._server.start()
        self._engine.start()
        self._keep_fresh = asyncio.create_task(self._health.keep_fresh())
        log.info("listening on %s", self.address)

    def _add_port(self) -> int:
        if self._tls is None:
            return self._server.add_insecure_port(self.address)
        return self._server.add_secure_port(self.address, tls.server_credentials(self._tls))

    async def drain(self, timeout: float | None = None) -> None:
        """Refuses new calls and lets running ones finish within `timeout` seconds, by default
        the drain timeout."""
        if timeout is None:
            timeout = self._config.drain_timeout
        deadline = time.monotonic() + timeout
        self._health.start_draining()
        self._service.start_draining()
        self._engine.drain(deadline)
        if not await self._service.wait_idle(deadline + _LAST_WORDS_SECONDS):
            self._service.fail_all("the server stopped before the request was finished")
            await self._service.wait_idle(time.monotonic() + _CUT_SECONDS)
        self._service.end_watches()

    async def stop(self) -> None:
        """Closes the server and ends the engine. Calls that are not finished are cut."""
        await self._server.stop(grace=_CUT_SECONDS)
        if self._keep_fresh is not None:
            self._keep_fresh.cancel()
        await _try_for(_ENGINE_STOP_SECONDS, self._engine.stop)
        self._service.close()
        for files in (self._tls, self._token_check):
            if files is not None:
                files.close()
        await _try_for(_LAST_SPANS_SECONDS, self._tracer.close)


def _load_tls(protection: Protection) -> tls.TlsFiles | None:
    if not (protection.tls_cert and protection.tls_key):
        return None
    flags = tls.TlsFlags(("--tls-cert", protection.tls_cert), ("--tls-key", protection.tls_key))
    files = tls.load(flags)
    files.watch(tls.tell_expiry())
    return files


def _load_token_check(protection: Protection, records: CallRecords) -> TokenCheck | None:
    if not protection.token_hashes:
        return None
    return TokenCheck(load_hashes(protection.token_hashes), records.unauthenticated)


async def _try_for(seconds: float, stop: Callable[[], None]) -> None:
    """What is stuck must not keep the process from ending."""
    thread = threading.Thread(target=stop, name="stop", daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, seconds)


async def serve(
    config: ServerConfig, model: ServedModel, make_engine: Callable[[FrontEnd], RunningEngine]
) -> None:
    """Serves until SIGTERM or SIGINT, then drains. A second signal ends the process."""
    server = ApiServer(config, model, make_engine)
    stopping = asyncio.Event()

    def on_signal(number: int) -> None:
        if stopping.is_set():
            log.warning("second signal: stopping at once")
            os._exit(128 + number)
        log.info("draining for at most %g seconds", config.drain_timeout)
        stopping.set()

    take_over(asyncio.get_running_loop(), on_signal)
    await server.start()
    await stopping.wait()
    await server.drain()
    await server.stop()
    log.info("stopped")
