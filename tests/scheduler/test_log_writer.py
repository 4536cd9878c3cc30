"""The log never makes its writers wait for its reader, and loses nothing of one that reads."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.log_writer import BackgroundHandler
from tests.waiting import SECONDS

ROOT = Path(__file__).resolve().parents[2]


class Log:
    """A logger over a pipe that the test reads when it likes."""

    def __init__(self, most_lines: int) -> None:
        self.read_end, write_end = os.pipe()
        self._stream = os.fdopen(write_end, "w")
        self.handler = BackgroundHandler(self._stream, most_lines)
        self.handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        self.logger = logging.Logger("test_log_writer", logging.INFO)
        self.logger.addHandler(self.handler)

    def read_until(self, end: str) -> list[str]:
        text, deadline = "", time.monotonic() + SECONDS
        while not text.endswith(end + "\n"):
            assert time.monotonic() < deadline, text[-200:]
            text += os.read(self.read_end, 1 << 20).decode()
        return text.splitlines()


@pytest.fixture
def make() -> Iterator:
    logs: list[Log] = []

    def one(most_lines: int) -> Log:
        logs.append(Log(most_lines))
        return logs[-1]

    yield one
    for log in logs:
        os.close(log.read_end)


def test_lines_of_many_threads_come_whole_and_in_each_ones_order(make):
    log = make(10_000)

    def write(name: str) -> None:
        for i in range(200):
            log.logger.info("%s %d %s", name, i, "x" * 50)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    reader = log.read_until
    for thread in threads:
        thread.join()
    log.logger.info("end")
    lines = reader("INFO end")[:-1]
    for name in "abcd":
        numbers = [line.split()[2] for line in lines if line.split()[1] == name]
        assert numbers == [str(i) for i in range(200)]
    assert all(line.endswith("x" * 50) for line in lines)


def test_a_reader_that_stands_still_costs_lines_and_no_time_and_is_told_how_many(make):
    log = make(100)
    log.logger.info("x" * 200_000)  # more than the pipe holds
    while not log.handler._writing:
        time.sleep(0.001)
    done = threading.Event()

    def write() -> None:
        for i in range(5000):
            log.logger.info("line %d", i)
        done.set()

    threading.Thread(target=write, daemon=True).start()
    assert done.wait(SECONDS)
    lines = log.read_until("as the log was not read fast enough")
    assert lines[1:101] == [f"INFO line {i}" for i in range(100)]
    text = "WARNING 4900 lines are left out here, as the log was not read fast enough"
    assert lines[101:] == [text]
    log.logger.info("on again")
    assert log.read_until("on again") == ["INFO on again"]


def test_lines_are_written_whoever_holds_the_handlers_lock(make):
    log = make(10)
    with log.handler.lock:  # as newer Pythons do, for as long as a line is handed over
        threading.Thread(target=log.logger.info, args=("x",)).start()
        assert log.read_until("x") == ["INFO x"]


def test_a_reader_that_is_gone_harms_nobody(make):
    log = make(10)
    os.close(log.read_end)
    for _ in range(3):
        log.logger.info("x")
        log.handler.flush()
        # The thread goes on taking lines: none is kept for a reader that never comes.
        assert (len(log.handler._lines), log.handler._writing) == (0, False)
    log.read_end, _ = os.pipe()


def test_an_error_waits_for_a_writer_that_gets_no_turn_and_for_no_reader_that_stands_still(
    make, monkeypatch
):
    monkeypatch.setattr("scheduler.log_writer._FLUSH_SECONDS", 0.01)
    monkeypatch.setattr("scheduler.log_writer._STARVED_SECONDS", 2 * SECONDS)
    log = make(10)
    write = log.handler._write

    def late(lines: list[str]) -> None:
        time.sleep(0.2)
        write(lines)

    monkeypatch.setattr(log.handler, "_write", late)
    log.logger.error("x")
    os.set_blocking(log.read_end, False)
    assert os.read(log.read_end, 100) == b"ERROR x\n"

    started = time.monotonic()
    log.logger.error("x" * 200_000)  # more than the pipe holds
    log.logger.error("y")
    assert time.monotonic() - started < SECONDS
    assert log.handler._lines == deque(["ERROR y"])


@pytest.mark.parametrize("end", ["os._exit(3)", "sys.exit(3)"])
def test_the_last_error_is_out_before_the_process_ends(end):
    code = (
        "import logging, os, sys\n"
        "from scheduler.log_format import start_logging\n"
        "start_logging('info', 'human')\n"
        "logging.info('before')\n"
        f"logging.error('the last')\n{end}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 3
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == ["before", "the last"]
