"""`nanoserve top` as a process, on a terminal and off it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import grpc
import pytest

from nanoserve.v1 import inference_pb2 as pb
from tests.protos.command import command, environment, nanoserve
from tests.protos.scripted_server import ScriptedServer
from tests.protos.statuses import response
from tests.waiting import SECONDS

ALTERNATE_SCREEN = b"\x1b[?1049h"
MAIN_SCREEN = b"\x1b[?1049l"
COLOUR = re.compile(rb"\x1b\[[0-9;]*(38;5;|48;5;|4[0-7]|3[0-7])[0-9;]*m")


def one_a_tick(
    request: pb.WatchStatusRequest, context: grpc.ServicerContext
) -> Iterator[pb.GetStatusResponse]:
    """A watcher whose seconds pass at ten times the speed."""
    for second in range(1000):
        if not context.is_active():
            return
        yield response(second)
        time.sleep(0.1)


@pytest.fixture
def busy(server: ScriptedServer) -> ScriptedServer:
    server.watcher = one_a_tick
    return server


class Terminal:
    """A command in a terminal of 80 columns and 24 lines."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.seen = b""
        self._main, inner = pty.openpty()
        termios.tcsetwinsize(inner, (24, 80))
        self.settings = termios.tcgetattr(inner)
        # The terminal decides, not what a test run's environment says of its own.
        quiet = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "CI"}
        env = {name: value for name, value in environment().items() if name not in quiet}
        env |= {"TERM": "xterm-256color", "LANG": "C.UTF-8", **variables}
        self._inner = inner
        # Ctrl-C reaches only who has the terminal as its own.
        owner = ["setsid", "--ctty", *command(*arguments)]
        self.process = subprocess.Popen(owner, env=env, stdin=inner, stdout=inner, stderr=inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        os.close(self._main)
        os.close(self._inner)

    def type(self, keys: bytes) -> None:
        os.write(self._main, keys)

    def wait_for(self, text: bytes, seconds: float = SECONDS) -> bytes:
        """All that came up to and with `text`, which is then forgotten."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} never came; last: {self.seen[-3000:]!r}"
            self._read(0.05)
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def ended(self, seconds: float = SECONDS) -> int:
        """The exit status; reads on, so that nobody waits for room to write."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it did not end"
            self._read(0.05)
        while self._read(0.0):
            pass
        return self.process.returncode

    @property
    def settings_are_back(self) -> bool:
        return termios.tcgetattr(self._inner) == self.settings

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._main], [], [], seconds)
        if ready:
            self.seen += os.read(self._main, 65536)
        return bool(ready)


@pytest.mark.parametrize("keys", [b"q", b"\x03"])
def test_it_draws_on_the_terminal_and_q_or_ctrl_c_leave_it_as_it_was(
    busy: ScriptedServer, keys: bytes
) -> None:
    with Terminal("top", "--address", busy.address, "--interval", "0.5") as terminal:
        terminal.wait_for(ALTERNATE_SCREEN)
        drawn = terminal.wait_for(b"100 tokens/s")
        drawn += terminal.wait_for(b"second")
        assert COLOUR.search(drawn)
        assert not terminal.settings_are_back, "keys come one by one"
        terminal.type(keys)
        assert terminal.ended() == 0
        assert MAIN_SCREEN in terminal.seen
        assert b"Traceback" not in terminal.seen
        assert terminal.settings_are_back
    request = busy.status_requests[0]
    assert request == pb.WatchStatusRequest(
        interval_seconds=0.5, include_rows=True, include_block_map=True, include_latencies=True
    )


def test_sigterm_leaves_the_terminal_as_it_was(busy: ScriptedServer) -> None:
    with Terminal("top", "--address", busy.address) as terminal:
        terminal.wait_for(b"tokens/s")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ended() == 0
        assert MAIN_SCREEN in terminal.seen
        assert terminal.settings_are_back


def test_with_no_color_there_is_none(busy: ScriptedServer) -> None:
    with Terminal("top", "--address", busy.address, NO_COLOR="1") as terminal:
        drawn = terminal.wait_for(b"AAAAAAAAAADDDDD") + terminal.wait_for(b"second")
        assert not COLOUR.search(drawn)
        terminal.type(b"q")
        assert terminal.ended() == 0


def test_a_dumb_terminal_gets_pictures_one_below_the_other(busy: ScriptedServer) -> None:
    with Terminal("top", "--address", busy.address, TERM="dumb") as terminal:
        drawn = terminal.wait_for(b"K/V pool") + terminal.wait_for(b"K/V pool")
        assert b"\x1b[" not in drawn
        terminal.type(b"\x03")
        assert terminal.ended() == 0


def test_it_says_when_the_server_goes_away_and_goes_on_when_it_is_back(
    busy: ScriptedServer,
) -> None:
    def drained(
        request: pb.WatchStatusRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GetStatusResponse]:
        yield response(1)
        yield response(2)
        busy.watcher = one_a_tick

    busy.watcher = drained
    with Terminal("top", "--address", busy.address) as terminal:
        terminal.wait_for(b" away ")
        terminal.wait_for(b"the server has drained; trying again")
        terminal.wait_for(b" ready ")
        busy.__exit__()
        terminal.wait_for(f"no server answers at {busy.address}; trying again".encode())
        terminal.type(b"q")
        assert terminal.ended() == 0


def test_into_a_pipe_it_prints_plain_pictures_until_it_is_interrupted(
    busy: ScriptedServer,
) -> None:
    process = subprocess.Popen(
        command("top", "--address", busy.address),
        env=environment(LANG="C.UTF-8", PYTHONUTF8="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline().decode() for _ in range(30)]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == b""
        assert process.wait(SECONDS) == 0
    starts = [i for i, line in enumerate(lines) if line.startswith("nanoserve  ")]
    assert len(starts) >= 2
    picture = "".join(lines[starts[0] : starts[1]])
    assert "\x1b" not in picture
    assert "output       100 tokens/s" in picture
    assert "A  first" in picture
    assert all(len(line.rstrip("\n")) <= 80 for line in lines)


def test_once_is_one_picture_of_one_interval(server: ScriptedServer) -> None:
    def two(
        request: pb.WatchStatusRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GetStatusResponse]:
        yield response(1)
        server.status = response(2)
        yield from server.watch_for_ever(request, context)

    server.watcher = two
    done = nanoserve("top", "--once", "--address", server.address, PYTHONUTF8="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("K/V pool") == 1
    assert "output       100 tokens/s" in done.stdout
    assert "last 1 s" in done.stdout


def test_without_utf_8_the_picture_is_ascii(busy: ScriptedServer) -> None:
    done = nanoserve("top", "--once", "--address", busy.address, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "#AAAAAAAAAADDDDD%%" in done.stdout


@pytest.mark.parametrize("flags", [[], ["--once"]])
def test_no_server_at_the_start_is_one_line(flags: list[str], nobody: str) -> None:
    done = nanoserve("top", *flags, "--address", nobody)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"nanoserve: UNAVAILABLE: no server answers at {nobody}; start one with `make serve`\n"
    )


def test_an_interval_that_the_server_refuses_is_one_line(server: ScriptedServer) -> None:
    def refuse(
        request: pb.WatchStatusRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GetStatusResponse]:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "interval_seconds: is 0")
        yield

    server.watcher = refuse
    done = nanoserve("top", "--interval", "0", "--address", server.address)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "nanoserve: INVALID_ARGUMENT: interval_seconds: is 0\n"


def test_without_rich_it_says_what_to_install(busy: ScriptedServer) -> None:
    hidden = (
        "import sys; sys.modules['rich'] = None; from nanoserve.cli.main import main; "
        f"sys.exit(main(['top', '--address', '{busy.address}']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "nanoserve: top draws with rich, which is not installed: pip install 'nanoserve[top]'\n"
    )
