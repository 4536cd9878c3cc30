"""Conversations made ready before they are due, so that sending one costs little."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from deploy.loadtest.workload import Request

_IDLE_SECONDS = 0.01


class Opening(NamedTuple):
    """The first request of a conversation."""

    request: Request
    payload: Any  # as the target encodes it
    later_turns: Iterator[int]  # indices of the conversation's other requests


class Stock:
    """Gives the openings of `conversations` in order; `size` of them are held ready."""

    def __init__(
        self, conversations: Iterable[int], make: Callable[[int], Opening], size: int
    ) -> None:
        self._conversations = iter(conversations)
        self._make = make
        self._size = size
        self._ready: deque[Opening] = deque()

    def fill(self) -> None:
        while self._add():
            pass

    async def keep_filled(self) -> None:
        """Makes one in each turn of the loop, so that nothing waits for more than one."""
        while True:
            await asyncio.sleep(0 if self._add() else _IDLE_SECONDS)

    def take(self) -> Opening | None:
        """The next; None after the last."""
        if not self._ready:
            self._add()
        return self._ready.popleft() if self._ready else None

    def _add(self) -> bool:
        if len(self._ready) >= self._size:
            return False
        conversation = next(self._conversations, None)
        if conversation is None:
            return False
        self._ready.append(self._make(int(conversation)))
        return True
