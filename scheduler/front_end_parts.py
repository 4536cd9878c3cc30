"""Makes what a front end needs from the flags."""

from __future__ import annotations

import argparse

from scheduler.api.model_folder import ModelFolder
from scheduler.api.protection import Protection
from scheduler.api.server import ServerConfig
from scheduler.api.service import ServedModel
from scheduler.api.tokenizer import Tokenizer
from scheduler.fronts.handles import first_handle


def server_config(flags: argparse.Namespace) -> ServerConfig:
    """Of the one front end, or of `flags.front_end`, one of several."""
    number = flags.front_end[1] if flags.front_end else None
    return ServerConfig(
        listen=flags.listen,
        protection=Protection.of(flags),
        drain_timeout=flags.drain_timeout,
        max_request_seconds=flags.max_request_seconds,
        max_queue=flags.max_queue,
        max_queue_wait=flags.max_queue_wait,
        max_streams=flags.max_streams_per_connection,
        log_text=flags.log_text,
        share_port=number is not None,
        first_handle=1 if number is None else first_handle(number),
    )


def served_model(flags: argparse.Namespace, folder: ModelFolder | None) -> ServedModel:
    if folder is None:
        return ServedModel(name="", tokenizer=None, end_ids=frozenset())
    tokenizer = None if flags.no_tokenizer else Tokenizer(folder)
    return ServedModel(folder.name, tokenizer, folder.end_ids)
