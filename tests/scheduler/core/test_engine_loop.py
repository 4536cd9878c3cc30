"""Who turns the engine's loop: its own thread, or in a hurry whoever brings a message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from scheduler.core.engine_loop import EngineLoop
from tests.waiting import SECONDS, wait_for

STOP = "stop"


class Loop(EngineLoop[object]):
    """Tells when its own thread has nothing left to do but to sleep."""

    def __init__(self, turning: Recorded, on_fatal: Callable[[Exception], None] | None) -> None:
        super().__init__(turning, on_fatal)
        self.rests = threading.Event()

    def _rest(self) -> None:
        self.rests.set()
        super()._rest()


class Recorded:
    """Notes which thread handled each message, and whether two ever turned at once."""

    def __init__(self) -> None:
        self.in_a_hurry = False
        self.pause: float | None = None
        self.is_over = False
        self.turns = self.overlaps = 0
        self.handled: list[tuple[object, str]] = []
        self.on_message: Callable[[object], None] = lambda _: None
        self.loop = Loop(self, None)
        self._one = threading.Lock()

    def turn(self) -> None:
        if not self._one.acquire(blocking=False):
            self.overlaps += 1
            return
        try:
            self.turns += 1
            for _ in range(self.loop.inbox.qsize()):
                message = self.loop.inbox.get()
                self.handled.append((message, threading.current_thread().name))
                self.is_over = message == STOP
                self.on_message(message)
        finally:
            self._one.release()

    def messages(self) -> list[object]:
        return [message for message, _ in self.handled]


@pytest.fixture(autouse=True)
def no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """None while a test waits: it would do what nobody was woken for."""
    monkeypatch.setattr("scheduler.core.engine_loop.HEARTBEAT_SECONDS", 10 * SECONDS)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    recorded = Recorded()
    yield recorded
    recorded.on_message = lambda _: None
    recorded.loop.bring(STOP)
    recorded.loop.join()
    assert not recorded.loop.runs


def started(recorded: Recorded, in_a_hurry: bool) -> Loop:
    """After its first turn, when its thread sleeps."""
    loop = recorded.loop
    recorded.in_a_hurry = in_a_hurry
    loop.start()
    assert loop.rests.wait(SECONDS)
    assert loop._in_a_hurry is in_a_hurry
    return loop


def test_in_a_hurry_whoever_brings_a_message_handles_it(recorded: Recorded) -> None:
    started(recorded, in_a_hurry=True).bring(1)
    assert recorded.handled == [(1, threading.current_thread().name)]


def test_otherwise_the_loops_own_thread_does(recorded: Recorded) -> None:
    started(recorded, in_a_hurry=False).bring(1)
    wait_for(lambda: recorded.handled, "it was handled")
    assert recorded.handled == [(1, "engine")]


def test_before_the_start_a_message_waits(recorded: Recorded) -> None:
    recorded.in_a_hurry = True
    recorded.loop.bring(1)
    assert recorded.handled == []
    recorded.loop.start()
    wait_for(lambda: recorded.handled == [(1, "engine")], "its own thread handled it")


def test_who_comes_while_another_turns_does_not_wait_and_is_not_forgotten(
    recorded: Recorded,
) -> None:
    loop = started(recorded, in_a_hurry=True)
    inside, go_on = threading.Event(), threading.Event()

    def hold(message: object) -> None:
        if message == "slow":
            inside.set()
            assert go_on.wait(SECONDS)

    recorded.on_message = hold
    slow = threading.Thread(target=loop.bring, args=("slow",), name="slow")
    slow.start()
    assert inside.wait(SECONDS)
    loop.bring("quick")  # returns
    assert recorded.messages() == ["slow"]
    go_on.set()
    slow.join()
    assert recorded.handled == [("slow", "slow"), ("quick", "slow")]


def test_a_message_brought_within_a_turn_is_handled_after_it(recorded: Recorded) -> None:
    loop = started(recorded, in_a_hurry=True)
    recorded.on_message = lambda message: loop.bring(2) if message == 1 else None
    loop.bring(1)
    assert recorded.messages() == [1, 2]
    assert recorded.overlaps == 0


def test_the_loop_turns_when_it_is_time_though_nobody_brings_a_message(recorded: Recorded) -> None:
    loop = started(recorded, in_a_hurry=True)
    recorded.on_message = lambda _: setattr(recorded, "pause", 0.001)
    loop.bring(1)
    before = recorded.turns
    wait_for(lambda: recorded.turns > before + 20, "it turned by itself")
    assert recorded.handled == [(1, threading.current_thread().name)]


def test_of_many_threads_messages_each_is_handled_once_and_by_one_turn_at_a_time(
    recorded: Recorded,
) -> None:
    loop = started(recorded, in_a_hurry=True)

    def change_hurry(message: object) -> None:
        recorded.in_a_hurry = hash(message) % 3 > 0

    recorded.on_message = change_hurry
    threads = [
        threading.Thread(target=lambda n=n: [loop.bring((n, i)) for i in range(500)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: len(recorded.handled) >= 2000, "all were handled")
    messages = recorded.messages()
    for n in range(4):
        assert [i for m, i in messages if m == n] == list(range(500)), "in the order brought"
    assert recorded.overlaps == 0


@pytest.mark.parametrize("in_a_hurry", [True, False])
def test_an_error_ends_the_loop_and_is_told_on_whatever_thread(in_a_hurry: bool) -> None:
    errors: list[Exception] = []
    recorded = Recorded()
    recorded.loop = Loop(recorded, errors.append)

    def fail(_: object) -> None:
        raise RuntimeError("broken")

    recorded.on_message = fail
    loop = started(recorded, in_a_hurry)
    loop.bring(1)
    loop.join()
    assert [str(error) for error in errors] == ["broken"]
    loop.bring(2)
    assert recorded.messages() == [1]
