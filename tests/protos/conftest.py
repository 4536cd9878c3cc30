"""A scripted server, or none, for each test that asks for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.protos.scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def nobody() -> Iterator[str]:
    """The address of a port that is ours, so that no other program takes it, and that nobody
    listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
