"""Real processes for a test: a worker and a scheduler that meet only over gRPC."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.child import Child
from deploy.local.servers import Servers, ServerSettings
from deploy.local.stop_signals import Unasked
from tests.waiting import SECONDS, wait_for

# A worker on a machine that never ran one compiles its kernels first.
READY_SECONDS = 180.0


@contextmanager
def running(
    *,
    model: Path | None = None,
    simulate: bool = False,
    worker: tuple[str, ...] = (),
    scheduler: tuple[str, ...] = (),
) -> Iterator[Servers]:
    """Both servers, ready, with the audit on. Raises if one of them ends badly."""
    settings = ServerSettings(
        model=model,
        listen=None,
        simulate=simulate,
        worker_args=worker,
        scheduler_args=("--audit", *(() if model else ("--no-tokenizer",)), *scheduler),
        echo=False,
        stop_patience=SECONDS,
    )
    with Servers(settings, Unasked()) as servers:
        servers.wait_until_ready(READY_SECONDS, lambda _: None)
        yield servers
        servers.check()
        complaints = servers.stop()
    assert complaints == []


@contextmanager
def supervised(
    *,
    model: Path | None = None,
    simulate: bool = False,
    worker: tuple[str, ...] = (),
    scheduler: tuple[str, ...] = (),
) -> Iterator[Servers]:
    """As `make serve` runs them: a worker that ends is started again. With the audit on."""
    settings = ServerSettings(
        model=model,
        listen=None,
        simulate=simulate,
        worker_args=("--metrics-listen", "off", *worker),
        scheduler_args=("--no-tokenizer", "--audit", "--metrics-listen", "off", *scheduler),
        echo=False,
        stop_patience=SECONDS,
        restart_worker=True,
    )
    stop = threading.Event()

    def supervise(servers: Servers) -> None:
        while not stop.wait(0.05):
            servers.check()

    with Servers(settings, Unasked()) as servers:
        servers.wait_until_ready(READY_SECONDS, lambda _: None)
        supervisor = threading.Thread(target=supervise, args=(servers,))
        supervisor.start()
        try:
            yield servers
        finally:
            stop.set()
            supervisor.join()


def start(name: str, *flags: str) -> Child:
    """One server process, `name` being its package."""
    return Child(name, [sys.executable, "-m", name, *flags], echo=False)


def wait_for_health(address: str, status: int, service: str = "") -> None:
    """Returns once health answers `status`. Raises AssertionError if it never does."""
    with grpc.insecure_channel(
        address, options=[("grpc.max_reconnect_backoff_ms", 200)]
    ) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)

        def answers() -> bool:
            with contextlib.suppress(grpc.RpcError):
                return health.Check(request, timeout=5).status == status
            return False

        wait_for(answers, f"health of {service!r} is {status}", READY_SECONDS)
