"""Waiting for a server under measurement."""

from __future__ import annotations

import contextlib
import socket
import time

from deploy.local.child import Child
from nanoserve import Client, NanoserveError

READY_SECONDS = 600.0


def wait_until_ready(address: str, child: Child) -> None:
    """Returns when the server says that it is ready. Raises RuntimeError with the end of
    its output if it ends first, or is not ready within READY_SECONDS."""
    give_up = time.monotonic() + READY_SECONDS
    while time.monotonic() < give_up and child.exit_status is None:
        # A channel of its own for each try: none waits for a backoff.
        with Client(address) as client, contextlib.suppress(NanoserveError):
            if client.status().ready:
                return
        time.sleep(0.01)
    raise RuntimeError(f"the server did not become ready:\n{child.tail()}")


def free_address() -> str:
    """HOST:PORT, since several front ends cannot share a unix socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"
