"""What a generator process needs of the server's protocol."""

from __future__ import annotations

from typing import Any, Protocol

from deploy.loadtest.record import Record
from deploy.loadtest.workload import Request

CONNECT_SECONDS = 30.0


class Failed(Exception):
    """A request failed with a status such as "UNAVAILABLE" or "HTTP 503"."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail


class Exchange(Protocol):
    """One request on its way. It fills its record, and ends it."""

    def cancel(self) -> None:
        """Nobody wants the rest. Does nothing once the request is over."""


class Target(Protocol):
    """A server, seen from one process; made and used in one event loop."""

    async def open(self) -> None:
        """Connects. Raises Failed."""

    async def close(self) -> None: ...

    def encode(self, request: Request, history: list[Any], request_id: str) -> Any:
        """The request as `begin` takes it. `history`: prompts and answers of the
        conversation's earlier turns, in turn."""

    def begin(self, payload: Any, record: Record) -> Exchange:
        """Sends it at once, and tells the record when. The record does not end before this
        returns."""
