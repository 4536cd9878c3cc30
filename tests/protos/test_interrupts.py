"""Ctrl-C stops an answer without an exception out of nowhere."""

from __future__ import annotations

import signal
import threading

from nanoserve.cli.interrupts import closing_on_interrupt


class Waiting:
    """Like a generation that waits for the server, inside the library's locks."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.passed_through = False

    def close(self) -> None:
        self.closed.set()

    def wait(self, presses: int) -> None:
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        self.passed_through = True
        assert self.closed.wait(10)


def test_ctrl_c_closes_what_is_waited_for_and_raises_nothing_inside_it() -> None:
    before = signal.getsignal(signal.SIGINT)
    target = Waiting()
    with closing_on_interrupt(target) as interrupted:
        target.wait(presses=3)
    assert target.passed_through
    assert interrupted.is_set()
    assert signal.getsignal(signal.SIGINT) is before


def test_without_ctrl_c_nothing_is_closed() -> None:
    target = Waiting()
    with closing_on_interrupt(target) as interrupted:
        pass
    assert not interrupted.is_set()
    assert not target.closed.is_set()
    assert not [t for t in threading.enumerate() if t.name == "interrupts"]
