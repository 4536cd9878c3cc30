"""A scheduler whose engine stands still ends, and no other does."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from scheduler.core.config import EngineConfig
from scheduler.engine_watch import EngineWatch


@dataclass
class Loop:
    """Stands in for an engine."""

    turned_at: float = 5.0
    runs: bool = True

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(loop_turned_at=self.turned_at)


def test_an_engine_that_stands_for_the_timeout_is_told_of_with_how_long() -> None:
    told: list[float] = []
    watch = EngineWatch(Loop(), 3.0, told.append)
    for _ in range(3):
        watch.look()
    assert told == []
    watch.look()
    assert told == [3.0]


def test_an_engine_that_turns_once_in_a_while_is_not_stuck() -> None:
    told: list[float] = []
    loop = Loop()
    watch = EngineWatch(loop, 3.0, told.append)
    for _ in range(10):
        loop.turned_at += 1
        for _ in range(3):
            watch.look()
    assert told == []


def test_an_engine_that_has_not_begun_or_has_ended_is_not_stuck() -> None:
    told: list[float] = []
    loop = Loop(runs=False)
    watch = EngineWatch(loop, 3.0, told.append)
    for _ in range(10):
        watch.look()
    loop.runs = True
    for _ in range(2):
        watch.look()
    loop.runs = False
    for _ in range(10):
        watch.look()
    assert told == []


STUCK = """
import sys, threading
from scheduler import __main__, engine_watch
from scheduler.core import config, engine

config.LEAST_STUCK_TIMEOUT, engine_watch.LOOK_SECONDS = 0.1, 0.05
def stands_for_ever(self):
    threading.Event().wait()
engine.Engine.turn = stands_for_ever
sys.exit(__main__.main(sys.argv[1:]))
"""


def test_a_scheduler_whose_engine_hangs_ends_with_1_and_the_stack_of_each_thread() -> None:
    flags = ("--no-tokenizer", "--listen", "127.0.0.1:0", "--metrics-listen", "off")
    done = subprocess.run(
        [sys.executable, "-c", STUCK, *flags, "--stuck-timeout", "0.3"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "CRITICAL scheduler.engine_watch: the engine's loop has stood for 0.3 s" in done.stderr
    engine = done.stderr.partition("thread engine:\n")[2]
    assert ", in stands_for_ever\n" in engine.partition("\nthread ")[0]


@pytest.mark.parametrize("seconds", [-1.0, 2.9, 1e6, float("nan")])
def test_a_timeout_that_an_idle_engine_might_pass_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"stuck_timeout is {seconds} seconds, must be 0 or at"):
        EngineConfig(stuck_timeout=seconds)
