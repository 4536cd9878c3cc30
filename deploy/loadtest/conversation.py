"""Requests of which each needs the answer to the one before; most have only one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from deploy.loadtest.calls import OVER
from deploy.loadtest.record import Record
from deploy.loadtest.stock import Opening
from deploy.loadtest.workload import Request


class Host(Protocol):
    """What a conversation needs of its generator."""

    is_stopped: bool
    think: float  # seconds between an answer and the next turn

    def send(
        self, request: Request, payload: Any, planned: float, on_end: Callable[[Record], None]
    ) -> Record: ...

    def refuse(self, indices: Iterator[int], planned: float, reason: str) -> None:
        """Records requests that are never sent."""

    def encode(self, index: int, history: list[Any]) -> tuple[Request, Any]: ...

    def at(self, moment: float, callback: Callable[[], None]) -> None:
        """Calls back at that time.monotonic(), or at once if it is past or the run over."""


class Conversation:
    """No turn begins from `until` on. `on_over` gets the record of the last that did."""

    def __init__(
        self,
        host: Host,
        later_turns: Iterator[int],
        until: float,
        on_over: Callable[[Record], None],
    ) -> None:
        self._host = host
        self._later_turns = later_turns
        self._until = until
        self._on_over = on_over
        self._history: list[Any] = []

    def start(self, opening: Opening, planned: float) -> None:
        self._host.send(opening.request, opening.payload, planned, self._ended)

    def _ended(self, record: Record) -> None:
        index = next(self._later_turns, None)
        if index is None:
            self._on_over(record)
            return
        later_turns = itertools.chain([index], self._later_turns)
        planned = (record.ended or 0.0) + self._host.think
        if record.status == "OK":
            self._history += [record.request.prompt, _joined(record)]
            self._host.at(planned, lambda: self._go_on(record, later_turns, planned))
        else:
            self._host.refuse(later_turns, planned, "the turn before it did not end well")
            self._on_over(record)

    def _go_on(self, last: Record, later_turns: Iterator[int], planned: float) -> None:
        if self._host.is_stopped or planned >= self._until:
            self._host.refuse(later_turns, planned, OVER)
            self._on_over(last)
            return
        request, payload = self._host.encode(next(later_turns), self._history)
        record = self._host.send(request, payload, planned, self._ended)
        record.prompt_tokens += token_count(self._history)


def token_count(parts: list[Any]) -> int:
    """Of prompts and answers; 0 for text, whose tokens only the server knows."""
    return sum(len(part) for part in parts if not isinstance(part, str))


def _joined(record: Record) -> tuple[int, ...] | str:
    """The answer, as a prompt is."""
    answer: Any = record.answer or ()
    return "".join(answer) if isinstance(record.request.prompt, str) else tuple(answer)
