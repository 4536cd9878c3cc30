"""Signals reach the one thread that waits, whatever the others do."""

import subprocess
import sys

import pytest

from tests.waiting import SECONDS
from tests.worker.worker_process import ROOT


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_that_interrupts_no_wait_of_the_main_thread_is_heard(number: str) -> None:
    # Taken by another thread, it leaves the main thread blocked, as one that comes right before
    # the main thread blocks.
    code = (
        "import signal, threading, time\n"
        "from worker.stop_signals import StopSignals\n"
        "signals = StopSignals()\n"
        "def take():\n"
        "    time.sleep(0.3)\n"
        f"    signal.pthread_kill(threading.get_ident(), signal.{number})\n"
        "threading.Thread(target=take, daemon=True).start()\n"
        "print(signals.events.get().name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stdout == f"{number}\n"
