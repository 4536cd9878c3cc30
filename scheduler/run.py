"""Puts a scheduler together from its flags: engine, link and front end."""

from __future__ import annotations

import argparse
import asyncio
import gc

from scheduler.api.address import AddressError, check_address
from scheduler.api.model_folder import ModelFolder, ModelFolderError
from scheduler.api.server import ServerConfig, serve
from scheduler.api.service import ServedModel
from scheduler.api.tokenizer import Tokenizer
from scheduler.core.config import EngineConfig
from scheduler.core.engine import Engine
from scheduler.link.link import GrpcWorkerLink


class StartError(Exception):
    """The scheduler cannot start; the message says why and what to do."""


def run(flags: argparse.Namespace) -> None:
    """Serves until a signal. Raises StartError."""
    try:
        check_address("--worker", flags.worker, flags.insecure)
        server_config = ServerConfig(
            listen=flags.listen,
            insecure=flags.insecure,
            drain_timeout=flags.drain_timeout,
            max_request_seconds=flags.max_request_seconds,
        )
        engine_config = EngineConfig(
            pipeline_depth=flags.pipeline_depth,
            max_step_tokens=flags.max_step_tokens,
            max_queue=flags.max_queue,
            audit=flags.audit,
        )
        folder = ModelFolder.read(flags.model) if flags.model else None
        link = GrpcWorkerLink(flags.worker, fingerprint=folder.fingerprint if folder else None)
        model = _served_model(folder, flags.no_tokenizer)
        # What is loaded by now stays. A collection that walks it stops the engine for tens
        # of milliseconds.
        gc.freeze()
        asyncio.run(
            serve(server_config, model, lambda front_end: Engine(engine_config, link, front_end))
        )
    except (AddressError, ModelFolderError, ValueError) as error:
        raise StartError(str(error)) from error


def _served_model(folder: ModelFolder | None, no_tokenizer: bool) -> ServedModel:
    if folder is None:
        return ServedModel(name="", tokenizer=None, end_ids=frozenset())
    tokenizer = None if no_tokenizer else Tokenizer(folder)
    return ServedModel(folder.name, tokenizer, folder.end_ids)
