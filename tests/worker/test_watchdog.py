"""A step that hangs ends the process, whatever it holds."""

from __future__ import annotations

import faulthandler
import threading
import time

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
        return self.now

    def sleep(self, _seconds: float) -> None:
        """Between two looks of the watchdog."""
        self._looks += 1
        time.sleep(0.001)

    def wait_for_looks(self) -> None:
        """Until the watchdog has looked once more at what is so."""
        before = self._looks
        wait_for(lambda: self._looks > before + 1, "it looks again")


def test_only_work_that_takes_too_long_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its timer would end this process, if the watchdog's thread did not run for a while.
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: None)
    hangs: list[StepTimeout] = []
    hung = threading.Event()
    clock = Clock()
    monkeypatch.setattr("worker.watchdog.time", clock)
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


@pytest.mark.parametrize(("timeout", "seconds"), [(1.0, 2.0), (60.0, 66.0)])
def test_the_timer_in_c_leaves_the_thread_time_to_say_why(
    monkeypatch: pytest.MonkeyPatch, timeout: float, seconds: float
) -> None:
    wound_up: list[float] = []
    clock, hung = Clock(), threading.Event()
    monkeypatch.setattr("worker.watchdog.time", clock)
    later = "worker.watchdog.faulthandler.dump_traceback_later"
    monkeypatch.setattr(later, lambda after, **_: wound_up.append(after))
    watchdog = Watchdog(timeout, lambda _: hung.set())
    watchdog.start()
    wait_for(lambda: wound_up, "it looked")
    with watchdog.watching():
        clock.now += timeout
        assert hung.wait(SECONDS)
    assert wound_up[0] == seconds
