"""Front ends are kept running: the dead and the stuck are replaced, and all end when told to."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import time
from collections.abc import AsyncIterator

import pytest

from scheduler.core.front_end import CallTotals
from scheduler.fronts import attached, supervisor
from scheduler.fronts.frames import FrameReader, frame
from scheduler.fronts.hub import Hub
from scheduler.fronts.messages import Alive, Drain, Started
from scheduler.fronts.supervisor import FrontEndError, Supervisor
from tests.scheduler.fronts import examples
from tests.waiting import SECONDS, until


class FakeProcess:
    """A front end that does what the test says; the other end of its socket is `theirs`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.began = time.monotonic()
        self.alive = True
        self._reader = FrameReader()

    def say(self, message: object) -> None:
        self.theirs.sendall(frame(message))

    def heard(self) -> list[object]:
        self.theirs.setblocking(False)
        try:
            return list(self._reader.feed(self.theirs.recv(1 << 20)))
        except BlockingIOError:
            return []

    def kill(self) -> None:
        self.alive = False
        self.theirs.close()

    def wait(self, patience: float) -> str:
        self.kill()
        return "exit status 7"


class FakeEngine:
    def __init__(self) -> None:
        self.calls = CallTotals()

    def status(self) -> object:
        return examples.status(random.Random(0))

    def report(self, totals: CallTotals) -> None:
        self.calls = totals


class Supervised:
    def __init__(self, count: int) -> None:
        self._numbers = itertools.count(1)
        self.processes: list[FakeProcess] = []
        self.failures: list[OSError] = []  # of starts to come
        self.hub = Hub()
        self.hub.attach(FakeEngine())
        for _ in range(count):
            self.start()
        self.supervisor = Supervisor(self.hub, tuple(self.processes), self.start)
        self.running = asyncio.create_task(self.supervisor.run())

    def start(self) -> FakeProcess:
        if self.failures:
            raise self.failures.pop()
        self.processes.append(FakeProcess(next(self._numbers)))
        return self.processes[-1]

    async def until_started(self, number: int) -> FakeProcess:
        """Front end `number`, once it runs and has said so."""
        await until(lambda: len(self.processes) >= number)
        process = self.processes[number - 1]
        process.say(Started())
        started = self.supervisor._front_ends
        await until(lambda: any(f.started and f.process is process for f in started))
        return process


@pytest.fixture
async def two() -> AsyncIterator[Supervised]:
    supervised = Supervised(2)
    for number in (1, 2):
        await supervised.until_started(number)
    yield supervised
    supervised.running.cancel()
    await asyncio.gather(supervised.running, return_exceptions=True)


async def test_a_dead_front_end_is_replaced_and_the_other_left_alone(two: Supervised) -> None:
    two.processes[0].kill()
    third = await two.until_started(3)
    assert (third.number, third.alive, two.processes[1].alive) == (3, True, True)
    assert set(two.hub._sends) == {2, 3}


async def test_front_ends_that_die_again_and_again_are_replaced_ever_more_slowly(
    two: Supervised,
) -> None:
    for number in (1, 3, 4):
        (await two.until_started(number)).kill()
    await until(lambda: len(two.processes) == 5)
    began = [process.began for process in two.processes[2:]]
    delays = [after - before for before, after in itertools.pairwise(began)]
    assert delays[0] >= 2 * supervisor.FIRST_DELAY
    assert delays[1] >= 4 * supervisor.FIRST_DELAY


async def test_a_start_that_the_system_refuses_is_tried_again(two: Supervised) -> None:
    two.failures = [OSError("no memory"), OSError("no memory")]
    two.processes[0].kill()
    await two.until_started(3)
    assert two.failures == []


async def test_a_silent_front_end_is_ended_and_replaced(two: Supervised, monkeypatch) -> None:
    monkeypatch.setattr(attached, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(supervisor, "_LATE_SECONDS", 0.2)  # a part of it, as it is outside of tests
    silent, speaking = two.processes
    while silent.alive:
        speaking.say(Alive())
        await asyncio.sleep(0.02)
    await until(lambda: len(two.processes) == 3)
    assert speaking.alive


async def test_silence_while_the_engines_own_process_stood_still_is_excused(
    two: Supervised, monkeypatch
) -> None:
    monkeypatch.setattr(attached, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(supervisor, "_LATE_SECONDS", 0.3)
    time.sleep(0.8)  # the loop with it
    for _ in range(3):
        for process in two.processes:
            process.say(Alive())
        await asyncio.sleep(2 * supervisor.TICK_SECONDS)
    assert all(process.alive for process in two.processes)


async def test_a_front_end_that_never_serves_ends_the_start_and_the_others() -> None:
    supervised = Supervised(2)
    await supervised.until_started(1)
    supervised.processes[1].kill()
    with pytest.raises(FrontEndError, match=r"front end 2 ended before it served.*status 7"):
        await supervised.running
    assert not supervised.processes[0].alive


async def test_a_drain_is_told_to_all_and_nobody_is_replaced(two: Supervised) -> None:
    two.supervisor.drain()
    await asyncio.sleep(0)
    assert all(Drain() in process.heard() for process in two.processes)
    for process in two.processes:
        assert not two.running.done()
        process.kill()
    await asyncio.wait_for(two.running, SECONDS)
    assert len(two.processes) == 2


@pytest.fixture
def late_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later than any test ends; for front ends that are started after this."""
    monkeypatch.setattr(supervisor, "MOST_DELAY", 10 * SECONDS)
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 10 * SECONDS)


async def test_a_drain_while_one_waits_to_be_replaced_ends_the_wait(
    late_replacement: None, two: Supervised
) -> None:
    two.processes[0].kill()
    await until(lambda: len(two.supervisor._front_ends) == 1)
    two.supervisor.drain()
    two.processes[1].kill()
    await asyncio.wait_for(two.running, SECONDS)
    assert len(two.processes) == 2, "nobody was started for the drain"
