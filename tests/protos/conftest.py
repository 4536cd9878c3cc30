"""A scripted server for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protos.scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running
