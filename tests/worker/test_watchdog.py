"""A step that hangs ends the process, whatever it holds."""

from __future__ import annotations

import faulthandler
import threading

import grpc
import pytest

from nanoserve.v1 import worker_pb2_grpc
from tests.waiting import SECONDS, wait_for
from tests.worker.running_worker import Stream, connect
from tests.worker.step_messages import first_step
from tests.worker.test_process import SIMULATED
from tests.worker.worker_process import WorkerProcess, worker_process
from worker.watchdog import StepTimeout, Watchdog


def run_first_step(worker: WorkerProcess) -> None:
    """Its last prompt token is 14."""
    with grpc.insecure_channel(worker.address()) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)  # a call that nobody holds is cancelled
        stream.send(first_step(incarnation))
        assert worker.wait() == 1


def test_a_step_that_holds_the_interpreters_lock_for_ever_ends_the_process_with_1() -> None:
    with worker_process(*SIMULATED, "--hang-tokens", "14", "--step-timeout", "1") as worker:
        run_first_step(worker)
        assert "Timeout (" in worker.log
        assert "in _repetition" in worker.log, "the stacks show where it hangs"


def test_a_device_that_never_answers_ends_the_process_with_1_and_the_reason() -> None:
    for _ in range(5):
        with worker_process(*SIMULATED, "--step-ms", "300000", "--step-timeout", "1") as worker:
            run_first_step(worker)
        if "Timeout (" not in worker.log:
            break  # otherwise its thread had no turn for a second, and the timer in C came first
    assert "fatal: a step was not done within the step timeout of 1 s" in worker.log


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_step_timeout_out_of_range_is_refused(value: str) -> None:
    with worker_process("--simulate", "--step-timeout", value) as worker:
        assert worker.wait() == 2
        assert "--step-timeout is" in worker.log


class Clock:
    """Stands for the module `time`; goes on when a test says so."""

    def __init__(self) -> None:
        self.now, self._looks = 0.0, 0

    def monotonic(self) -> float:
        self._looks += threading.current_thread().name == "watchdog"
        return self.now

    def wait_for_looks(self) -> None:
        """Until the watchdog has looked once more at what is so."""
        before = self._looks
        wait_for(lambda: self._looks > before + 1, "it looks again")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("worker.watchdog.time", clock)
    return clock


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which the timer in C was wound up; it would end this process, if the
    watchdog's thread did not run for a while. Emptied by whoever takes it off."""
    wound_up: list[float] = []
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda after, **_: wound_up.append(after)
    )
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", wound_up.clear)
    return wound_up


def test_only_work_that_takes_too_long_is_a_hang(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, timers: list[float]
) -> None:
    monkeypatch.setattr("worker.watchdog._TICK_SECONDS", 0.001)
    hangs: list[StepTimeout] = []
    hung = threading.Event()
    watchdog = Watchdog(1.0, lambda error: (hangs.append(error), hung.set()))
    watchdog.start()
    for _ in range(3):
        with watchdog.watching():
            clock.now += 0.9
            clock.wait_for_looks()
    assert watchdog.oldest() == 0.0
    assert not hung.is_set()
    with watchdog.watching():
        clock.now += 1.0
        assert hung.wait(SECONDS)
        assert watchdog.oldest() == 1.0
    assert str(hangs[0]) == "a step was not done within the step timeout of 1 s"
    assert timers == []


@pytest.mark.parametrize(("timeout", "seconds"), [(1.0, 2.0), (60.0, 66.0)])
def test_the_timer_in_c_leaves_the_thread_time_to_say_why(
    clock: Clock, timers: list[float], timeout: float, seconds: float
) -> None:
    watchdog = Watchdog(timeout, lambda _: None)
    watchdog.start()
    wait_for(lambda: timers, "it looked")
    with watchdog.watching():
        clock.now += timeout / 4
        wait_for(lambda: timers[-1] != seconds, "it looks again")
        assert timers[-1] == seconds - timeout / 4
    assert timers[0] == seconds
    watchdog.stop()


def test_a_watchdog_that_is_stopped_takes_its_timer_with_it(timers: list[float]) -> None:
    before = set(threading.enumerate())
    watchdog = Watchdog(60.0, lambda _: None)
    watchdog.start()
    wait_for(lambda: timers, "it looked")
    watchdog.stop()
    assert timers == []
    assert set(threading.enumerate()) <= before
