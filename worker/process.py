"""The worker as a process: start, signals, exit codes."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from nanoserve.reloaded import FileError
from worker.address import ListenAddress
from worker.executor import Executor
from worker.geometry import Geometry
from worker.recorder import Recorders
from worker.server import WorkerServer
from worker.service import WorkerService
from worker.session import Session
from worker.start import StartError
from worker.step_loop import StepLoop
from worker.stop_signals import StopSignals

if TYPE_CHECKING:
    from nanoserve.tls import TlsFiles, TlsFlags
    from worker.metrics_server import MetricsServer

log = logging.getLogger("worker")


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """`metrics` None: no metrics are served. `tls`: the files of mutual TLS. Raises ValueError
    for an address that others can reach without it, unless `insecure`."""

    listen: ListenAddress
    metrics: ListenAddress | None = None
    tls: TlsFlags | None = None
    insecure: bool = False
    metrics_unprotected: bool = False
    drain_timeout: float = 30.0  # seconds
    check_slots: bool = False

    def __post_init__(self) -> None:
        if not (self.listen.is_local or self.tls or self.insecure):
            raise ValueError(
                f"listen address {self.listen.text} can be reached from other machines, without "
                "--tls-cert, --tls-key and --tls-client-ca: give them (python -m deploy.secrets "
                "init makes the files), use a loopback address or a unix socket, or say --insecure"
            )
        if self.metrics and not self.metrics.is_local and not self.metrics_unprotected:
            raise ValueError(
                f"--metrics-listen {self.metrics.text} can be reached from other machines, and "
                "metrics have no encryption and ask nobody who he is: use a loopback address or "
                "off, or, where only Prometheus can reach it, say --metrics-unprotected"
            )
        if not 0 <= self.drain_timeout < 1e6:
            raise ValueError(f"drain_timeout is {self.drain_timeout}, must be 0 <= s < 1e6")


def run(
    signals: StopSignals,
    options: ProcessOptions,
    make_executor: Callable[[], Executor],
    recorders: Recorders,
) -> NoReturn:
    """Loads, serves until a signal comes, drains and exits: with 0 after a signal, with 1 if
    it cannot start.

    The main thread only waits, so that a signal is heard at once while another thread loads.
    """
    on_fatal = recorders.before(exit_on_fatal)
    try:
        options.listen.check_free()
        files = _load_tls(options.tls) if options.tls else None
    except (OSError, FileError) as error:
        on_fatal(StartError(str(error)))
    metrics = _serve_metrics(options.metrics, on_fatal) if options.metrics else None
    loop = StepLoop(make_executor, on_ready=signals.events.put, on_fatal=on_fatal)
    began = time.monotonic()
    loop.start()
    geometry = signals.events.get()
    if not isinstance(geometry, Geometry):
        log.info("%s while loading: exit", geometry.name)
        recorders.stop()
        _exit(0)
    recorders.start(geometry)
    session = Session(geometry, check_slots=options.check_slots, recorders=recorders)
    session.statistics.load_seconds = time.monotonic() - began
    if metrics:
        metrics.show(session)
    server = WorkerServer(WorkerService(session, loop), options.listen, files)
    try:
        address = server.start()
    except OSError as error:
        on_fatal(StartError(str(error)))
    log.info("listening on %s", address)
    came = signals.events.get()
    log.info("%s: draining for at most %g s", came.name, options.drain_timeout)
    server.drain(options.drain_timeout)
    recorders.stop()
    log.info("stopped")
    _exit(0)  # not by returning, which waits for a handler that waits for a stuck device


def _load_tls(flags: TlsFlags) -> TlsFiles:
    """Raises FileError, before a long load."""
    from nanoserve import tls

    files = tls.load(flags)
    files.watch(tls.tell_expiry())
    return files


def _serve_metrics(
    address: ListenAddress, on_fatal: Callable[[BaseException], NoReturn]
) -> MetricsServer:
    """From before the load on, so that a port in use costs no load."""
    from worker.metrics_server import MetricsServer

    try:
        server = MetricsServer(address)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        on_fatal(
            StartError(
                f"--metrics-listen {address.text}: {why}: give another port, 0 for a free one, or "
                "off"
            )
        )
    server.start()
    log.info("metrics at %s", server.url)
    return server


def exit_on_fatal(error: BaseException) -> NoReturn:
    """Ends the process with code 1: what is left of it could only answer wrongly."""
    if isinstance(error, StartError):
        log.error("cannot start: %s", error)
    else:
        log.critical("fatal: %s", error, exc_info=error)
    _exit(1)


def _exit(code: int) -> NoReturn:
    """Leaves without waiting for threads, which may be in the middle of a load."""
    with contextlib.suppress(Exception):
        logging.shutdown()
        sys.stderr.flush()
    os._exit(code)
