"""Puts a scheduler together from its flags: engine, link and front end."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
from collections.abc import Callable

from scheduler.api.address import AddressError, check_address
from scheduler.api.model_folder import ModelFolder, ModelFolderError
from scheduler.api.server import ServerConfig, serve
from scheduler.api.service import ServedModel
from scheduler.api.tokenizer import Tokenizer
from scheduler.core.config import EngineConfig
from scheduler.core.continuous_batching import ContinuousBatching
from scheduler.core.engine import Engine
from scheduler.core.policy import Policy
from scheduler.core.static_batching import StaticBatching
from scheduler.core.worker_link import WorkerLink
from scheduler.link.link import GrpcWorkerLink


class StartError(Exception):
    """The scheduler cannot start; the message says why and what to do."""


def run(
    flags: argparse.Namespace,
    make_link: Callable[[argparse.Namespace, str | None], WorkerLink] | None = None,
) -> None:
    """Serves until a signal. Raises StartError.

    `make_link` gets the flags and the fingerprint of the model that the worker must
    serve; None makes the link over gRPC.
    """
    try:
        server_config = ServerConfig(
            listen=flags.listen,
            insecure=flags.insecure,
            drain_timeout=flags.drain_timeout,
            max_request_seconds=flags.max_request_seconds,
            max_queue=flags.max_queue,
        )
        engine_config = EngineConfig(
            pipeline_depth=flags.pipeline_depth,
            max_step_tokens=flags.max_step_tokens,
            max_queue=flags.max_queue,
            audit=flags.audit,
        )
        policy = _policy(flags)
        folder = ModelFolder.read(flags.model) if flags.model else None
        link = (make_link or _grpc_link)(flags, folder.fingerprint if folder else None)
        model = _served_model(folder, flags.no_tokenizer)
        # What is loaded by now stays. A collection that walks it stops the engine for tens
        # of milliseconds.
        gc.freeze()
        asyncio.run(
            serve(
                server_config,
                model,
                lambda front_end: Engine(engine_config, link, front_end, policy, on_fatal=_exit),
            )
        )
    except (AddressError, ModelFolderError, ValueError) as error:
        raise StartError(str(error)) from error


def _policy(flags: argparse.Namespace) -> Policy:
    if flags.policy == "continuous":
        return ContinuousBatching()
    wait, return_together = flags.static_wait or 0.0, flags.static_return == "batch"
    return StaticBatching(flags.static_batch, wait, return_together)


def _grpc_link(flags: argparse.Namespace, fingerprint: str | None) -> WorkerLink:
    check_address("--worker", flags.worker, flags.insecure)
    return GrpcWorkerLink(flags.worker, fingerprint=fingerprint)


def _exit(_: Exception) -> None:
    """A scheduler without its engine serves nobody: whoever started it must know. The
    engine has logged the error."""
    os._exit(1)


def _served_model(folder: ModelFolder | None, no_tokenizer: bool) -> ServedModel:
    if folder is None:
        return ServedModel(name="", tokenizer=None, end_ids=frozenset())
    tokenizer = None if no_tokenizer else Tokenizer(folder)
    return ServedModel(folder.name, tokenizer, folder.end_ids)
