"""SIGTERM and SIGINT, from the process's first moment to the server that drains for them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it takes a while, and the handlers come first
    from asyncio import AbstractEventLoop

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
_came: list[int] = []  # before `take_over`


def end_on_signals() -> None:
    """Until `take_over`: process 1 would otherwise ignore both signals."""
    for number in _NUMBERS:
        signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    _came.append(number)
    sys.exit(0)


def take_over(loop: AbstractEventLoop, on_signal: Callable[[int], None]) -> None:
    """From here on `on_signal` gets the number of each, called on the loop. Also of one
    that came before and did not end the process: what a handler raises is lost where it falls
    into a library that takes any exception for its own, as some do while they are imported."""
    for number in _NUMBERS:
        loop.add_signal_handler(number, on_signal, number)
    if _came:
        loop.call_soon(on_signal, _came[0])
