"""Waiting for what another thread or process does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Far more than anything takes on a busy machine: only what never comes true waits as long.
SECONDS = 60.0


def wait_for(condition: Callable[[], T], what: str, seconds: float = SECONDS) -> T:
    """What `condition` returns once that is true. Raises AssertionError if it never is."""
    give_up = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < give_up, f"it never came true that {what}"
        time.sleep(0.01)
    return result


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Returns once it is true. Raises AssertionError if it never is."""
    give_up = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < give_up, f"it never came true: {what}"
        await asyncio.sleep(0.01)
