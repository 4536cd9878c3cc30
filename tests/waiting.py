"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Raises AssertionError if it does not come true."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"it never came true that {what}"
        time.sleep(0.005)
