"""Puts a scheduler together from its flags: engine, link and front end in one process."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable

import uvloop

from scheduler.api.model_folder import ModelFolder
from scheduler.api.server import serve
from scheduler.core.worker_link import WorkerLink
from scheduler.engine_parts import engine_maker
from scheduler.front_end_parts import served_model, server_config
from scheduler.start_error import start_errors


def run(
    flags: argparse.Namespace,
    make_link: Callable[[argparse.Namespace, str | None], WorkerLink] | None = None,
) -> None:
    """Serves until a signal. Raises StartError.

    `make_link` gets the flags and the fingerprint of the model that the worker must
    serve; None makes the link over gRPC.
    """
    with start_errors():
        config = server_config(flags)
        folder = ModelFolder.read(flags.model) if flags.model else None
        make_engine = engine_maker(flags, folder, make_link)
        model = served_model(flags, folder)
        # What is loaded by now stays. A collection that walks it stops the engine for tens
        # of milliseconds.
        gc.freeze()
        uvloop.run(serve(config, model, make_engine))
