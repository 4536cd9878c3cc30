"""Puts a scheduler together whose front ends are processes of their own, and each of those."""

from __future__ import annotations

import argparse
import gc
import itertools
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import uvloop

from scheduler.api.address import AddressError, clear_unix_path
from scheduler.api.model_folder import ModelFolder
from scheduler.api.protection import Protection
from scheduler.fronts.front_end_process import FrontEndProcess
from scheduler.fronts.shared_port import SharedPort
from scheduler.start_error import StartError, start_errors

if TYPE_CHECKING:
    from scheduler.core.worker_link import WorkerLink
    from scheduler.fronts.hub import Hub

MOST_FRONT_ENDS = 64


def run_apart(
    flags: argparse.Namespace,
    arguments: Sequence[str],
    make_link: Callable[[argparse.Namespace, str | None], WorkerLink] | None = None,
    hub: Hub | None = None,
) -> None:
    """Serves until a signal, with the engine here and `flags.frontends` front ends.
    `arguments` are those that the flags were parsed from; `make_link` as for scheduler/run.py;
    `hub` None makes one. Raises StartError."""
    with start_errors():
        address, port = _own_address(flags)
    numbers = itertools.count(1)

    def start_another() -> FrontEndProcess:
        return FrontEndProcess(next(numbers), [*arguments, f"--listen={address}"])

    first = [start_another() for _ in range(flags.frontends)]
    try:
        _serve(flags, first, start_another, make_link, hub)
    finally:
        for process in first:
            process.kill()
        if port is not None:
            port.close()


def _own_address(flags: argparse.Namespace) -> tuple[str, SharedPort | None]:
    """The address that the front ends shall bind, ours from here on. Raises AddressError."""
    if not 1 <= flags.frontends <= MOST_FRONT_ENDS:
        raise AddressError(f"--frontends {flags.frontends}: give 0 to {MOST_FRONT_ENDS}")
    Protection.of(flags).check(flags.listen)
    if not flags.listen.startswith("unix:"):
        port = SharedPort(flags.listen)
        return port.address, port
    if flags.frontends > 1:
        raise AddressError(
            f"--listen {flags.listen}: {flags.frontends} processes cannot share a unix socket; "
            "give HOST:PORT, or --frontends 1"
        )
    clear_unix_path(flags.listen)
    return flags.listen, None


def _serve(
    flags: argparse.Namespace,
    first: Sequence[FrontEndProcess],
    start_another: Callable[[], FrontEndProcess],
    make_link: Callable[[argparse.Namespace, str | None], WorkerLink] | None,
    hub: Hub | None,
) -> None:
    # Here, so that the front ends load at the same time as we do.
    from scheduler.engine_parts import engine_maker
    from scheduler.fronts.hub import Hub
    from scheduler.fronts.parent import serve_apart
    from scheduler.fronts.supervisor import FrontEndError

    with start_errors():
        make_engine = engine_maker(flags, _model_folder(flags), make_link)
        gc.freeze()
        try:
            serving = serve_apart(
                make_engine, first, start_another, flags.drain_timeout, hub or Hub()
            )
            uvloop.run(serving)
        except FrontEndError as error:
            raise StartError(str(error)) from error


def run_front_end(flags: argparse.Namespace) -> int:
    """Runs the one front end that `flags.front_end` tells of, the file descriptor of its socket
    and its number, for its parent. Returns the exit status. Raises StartError."""
    from scheduler.front_end_parts import served_model, server_config
    from scheduler.fronts.child import obey_parent_only, serve_front_end

    obey_parent_only()
    descriptor, _ = flags.front_end
    sock = socket.socket(fileno=descriptor)
    with start_errors():
        config = server_config(flags)
        model = served_model(flags, _model_folder(flags))
        gc.freeze()
        return 0 if uvloop.run(serve_front_end(config, model, sock)) else 1


def _model_folder(flags: argparse.Namespace) -> ModelFolder | None:
    return ModelFolder.read(flags.model) if flags.model else None
