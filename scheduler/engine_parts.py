"""Makes the engine and what goes with it from the flags."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from nanoserve import tls
from nanoserve.reloaded import all_or_none
from scheduler.api.address import check_address
from scheduler.api.metrics import SchedulerCollector
from scheduler.api.metrics_server import MetricsServer
from scheduler.api.model_folder import ModelFolder
from scheduler.core.config import EngineConfig
from scheduler.core.continuous_batching import ContinuousBatching
from scheduler.core.engine import Engine
from scheduler.core.front_end import FrontEnd
from scheduler.core.policy import Policy
from scheduler.core.static_batching import StaticBatching
from scheduler.core.worker_link import WorkerLink
from scheduler.engine_watch import EngineWatch, end_process
from scheduler.link.link import GrpcWorkerLink

_UNPROTECTED_LINK = (
    "without --worker-tls-ca, --worker-tls-cert and --worker-tls-key: give them (python -m "
    "deploy.secrets init makes the files), use a worker on this machine, or say --insecure"
)


def engine_maker(
    flags: argparse.Namespace,
    folder: ModelFolder | None,
    make_link: Callable[[argparse.Namespace, str | None], WorkerLink] | None = None,
) -> Callable[[FrontEnd], Engine]:
    """Checks all that the engine needs at once, and makes it later. `make_link` gets the
    flags and the fingerprint of the model that the worker must serve; None makes the link over
    gRPC."""
    config = EngineConfig(
        pipeline_depth=flags.pipeline_depth,
        max_step_tokens=flags.max_step_tokens,
        max_queue=flags.max_queue,
        max_queue_tokens=flags.max_queue_tokens,
        max_queue_wait=flags.max_queue_wait,
        prefix_cache=not flags.no_prefix_cache,
        audit=flags.audit,
        step_timeout=flags.step_timeout,
        recovery_timeout=flags.recovery_timeout,
        stuck_timeout=flags.stuck_timeout,
        decode_steps=flags.decode_steps,
    )
    policy = _policy(flags)
    link = (make_link or _grpc_link)(flags, folder.fingerprint if folder else None)
    metrics = _metrics_server(flags)

    def make(front_end: FrontEnd) -> Engine:
        engine = Engine(config, link, front_end, policy, on_fatal=_exit)
        if config.stuck_timeout:
            EngineWatch(engine, config.stuck_timeout, end_process).start()
        if metrics is not None:
            metrics.start(SchedulerCollector(engine))
        return engine

    return make


def _metrics_server(flags: argparse.Namespace) -> MetricsServer | None:
    """Bound, so that a port in use stops the start. It serves until the process ends."""
    if flags.metrics_listen in ("off", ""):
        return None
    return MetricsServer(flags.metrics_listen, flags.metrics_unprotected)


def _policy(flags: argparse.Namespace) -> Policy:
    if flags.policy == "continuous":
        return ContinuousBatching()
    wait, return_together = flags.static_wait or 0.0, flags.static_return == "batch"
    return StaticBatching(flags.static_batch, wait, return_together)


def _grpc_link(flags: argparse.Namespace, fingerprint: str | None) -> WorkerLink:
    files = _worker_tls(flags)
    unprotected = "" if files or flags.insecure else _UNPROTECTED_LINK
    check_address("--worker", flags.worker, unprotected)
    return GrpcWorkerLink(flags.worker, fingerprint=fingerprint, files=files)


def _worker_tls(flags: argparse.Namespace) -> tls.TlsFiles | None:
    ca, cert, key = (
        ("--worker-tls-ca", flags.worker_tls_ca),
        ("--worker-tls-cert", flags.worker_tls_cert),
        ("--worker-tls-key", flags.worker_tls_key),
    )
    return tls.load(tls.TlsFlags(cert, key, ca)) if all_or_none(ca, cert, key) else None


def _exit(_: Exception) -> None:
    """A scheduler without its engine serves nobody: whoever started it must know. The
    engine has logged the error."""
    os._exit(1)
