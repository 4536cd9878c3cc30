import os
import signal
import threading
from collections.abc import Iterator

import pytest

from nanoserve.cli.interrupts import closing_on_interrupt
from tests.waiting import SECONDS


class Target:
    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    """Python's, which raises. Test processes that run beside others ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_interrupt_closes_and_raises_nothing() -> None:
    target = Target()
    with closing_on_interrupt(target) as interrupted:
        press()
        assert target.closed.wait(SECONDS)
    assert interrupted.is_set()


def test_the_second_interrupt_raises() -> None:
    target = Target()
    with pytest.raises(KeyboardInterrupt), closing_on_interrupt(target):  # noqa: PT012
        press()
        assert target.closed.wait(SECONDS)
        press()
        threading.Event().wait(SECONDS)


def test_afterwards_interrupts_are_what_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)
    target = Target()
    with closing_on_interrupt(target) as interrupted:
        pass
    assert signal.getsignal(signal.SIGINT) is before
    assert not interrupted.is_set()
    assert not target.closed.is_set()
