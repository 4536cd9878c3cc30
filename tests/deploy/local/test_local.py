"""The local launcher, with the scheduler and the simulated worker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deploy.local.restarts import Restarts
from deploy.secrets.__main__ import main as secrets
from nanoserve import Client, FinishReason
from tests.waiting import SECONDS, wait_for
from worker.simulated_tokens import expected_tokens

ROOT = Path(__file__).resolve().parents[3]
# Without metrics, at whose default addresses somebody else's servers may start at this moment.
WORKER = "--worker-args=--vocab-size 100 --step-ms 20"
SIMULATED = ["--simulate", f"{WORKER} --metrics-listen off"]
NO_TOKENIZER = "--scheduler-args=--no-tokenizer --metrics-listen off"
# A scheduler that looks for its worker elsewhere is never ready.
LOST = "--scheduler-args=--no-tokenizer --metrics-listen off --worker unix:/nonexistent/worker.sock"


def launcher(mode: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "deploy.local", mode, *SIMULATED, *arguments]


class Launcher:
    """`python -m deploy.local` in a session of its own, with its children's ids."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            launcher(*arguments),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'protos'}", "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, text: str) -> str:
        """The first line that has `text`."""
        found: list[str] = []

        def seen() -> bool:
            found.extend(line for line in self.lines if text in line)
            return bool(found)

        self._wait_until(seen)
        return found[0]

    def child(self, name: str) -> psutil.Process:
        """The server process of `python -m name`, once it runs as that."""
        found: list[psutil.Process] = []

        def started() -> bool:
            for process in psutil.Process(self.process.pid).children():
                if process.cmdline()[1:3] == ["-m", name]:
                    found.append(process)
            return bool(found)

        self._wait_until(started)
        return found[0]

    def end(self) -> tuple[int, str]:
        """Exit status and whole output, once it has ended."""
        status = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return status, "\n".join(self.lines)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        def met() -> bool:
            # In this order: the process may have ended right after it came true.
            if ended := self.process.poll() is not None:
                self._reader.join(SECONDS)
            came_true = condition()
            assert came_true or not ended, "\n".join(self.lines)
            return came_true

        wait_for(met, "the launcher does as it should")

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line.rstrip())


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def folder() -> Iterator[Path]:
    """For the launcher's sockets: short enough for a socket's path, and empty again
    after a clean end."""
    with tempfile.TemporaryDirectory(prefix="ns-") as path:
        yield Path(path)


@pytest.fixture
def launch(folder: Path) -> Iterator[Callable[..., Launcher]]:
    launched: list[Launcher] = []

    def start(*arguments: str) -> Launcher:
        launched.append(Launcher(folder, *arguments))
        return launched[-1]

    yield start
    for one in launched:
        one.kill()


def test_run_gives_the_command_a_ready_server_and_returns_its_status(
    launch: Callable[..., Launcher], folder: Path
) -> None:
    script = (
        "import sys; from os import environ; from nanoserve import Client;"
        "client = Client(environ['NANOSERVE_ADDRESS']);"
        "tokens = client.generate(token_ids=[1, 2], max_tokens=5).collect().token_ids;"
        "print('got', len(tokens)); sys.exit(7)"
    )
    running = launch("run", NO_TOKENIZER, "--", sys.executable, "-c", script)
    status, output = running.end()
    assert status == 7, output
    assert output.splitlines()[-1] == "got 5"
    assert "ready at unix:" in output
    assert os.listdir(folder) == []


def test_serve_knows_when_a_scheduler_with_tls_and_tokens_is_ready(
    launch: Callable[..., Launcher], folder: Path, tmp_path: Path
) -> None:
    assert secrets(["init", str(tmp_path)]) == 0
    ours = tmp_path / "scheduler"
    flags = f"{NO_TOKENIZER} --tls-cert {ours}/tls.pem --tls-key {ours}/tls-key.pem"
    address = f"unix:{folder}/public.sock"
    serving = launch("serve", f"{flags} --token-hashes {ours}/token-hashes", f"--listen={address}")
    serving.wait_for("ready at")
    token = (tmp_path / "client/token").read_text().strip()
    with Client(address, tls_ca=tmp_path / "client/ca.pem", token=token) as client:
        assert client.status().ready
    serving.process.send_signal(signal.SIGTERM)
    status, output = serving.end()
    assert status == 0, output


def test_serve_drains_on_an_interrupt_and_leaves_nothing(
    launch: Callable[..., Launcher], folder: Path
) -> None:
    serving = launch("serve", NO_TOKENIZER, f"--listen=unix:{folder}/public.sock")
    serving.wait_for("ready at")
    servers = [serving.child("worker"), serving.child("scheduler")]
    with Client(f"unix:{folder}/public.sock") as client:
        generation = client.generate(token_ids=[1], max_tokens=40)
        first = next(generation)
        # As a terminal does: to the whole group, in which the servers are not.
        os.killpg(serving.process.pid, signal.SIGINT)
        rest = generation.collect()
    assert len(first.token_ids) + len(rest.token_ids) == 40
    assert rest.finish_reason is FinishReason.LENGTH
    status, output = serving.end()
    assert status == 0, output
    assert all(is_gone(server) for server in servers)
    assert [name for name in os.listdir(folder) if name != "public.sock"] == []


def test_servers_beside_others_have_their_metrics_elsewhere_and_tell_where(
    launch: Callable[..., Launcher], folder: Path
) -> None:
    urls: list[str] = []
    for name in ("one", "two"):
        listen = f"--listen=unix:{folder}/{name}.sock"
        serving = launch("serve", WORKER, "--scheduler-args=--no-tokenizer", listen)
        serving.wait_for("ready at")
        for logger in ("worker", "scheduler.api.metrics_server"):
            url = serving.wait_for(f"{logger}: metrics at ").rpartition(" ")[2]
            with urllib.request.urlopen(url, timeout=SECONDS) as response:
                assert b"nanoserve_" in response.read()
            urls.append(url)
    assert len(set(urls)) == 4


def test_servers_of_a_command_serve_no_metrics(launch: Callable[..., Launcher]) -> None:
    running = launch("run", "--verbose", WORKER, "--scheduler-args=--no-tokenizer", "--", "true")
    status, output = running.end()
    assert status == 0, output
    assert "listening on" in output
    assert "metrics" not in output


def test_a_second_interrupt_kills(launch: Callable[..., Launcher], folder: Path) -> None:
    serving = launch("serve", NO_TOKENIZER, f"--listen=unix:{folder}/public.sock")
    serving.wait_for("ready at")
    servers = [serving.child("worker"), serving.child("scheduler")]
    with Client(f"unix:{folder}/public.sock") as client:
        generation = client.generate(token_ids=[1], max_tokens=2000, timeout=120)
        next(generation)
        serving.process.send_signal(signal.SIGINT)
        serving.wait_for("stopping")
        serving.process.send_signal(signal.SIGINT)
        status, output = serving.end()
    assert status == 1
    assert "the scheduler did not stop cleanly (exit status -9)" in output
    assert all(is_gone(server) for server in servers)


@pytest.mark.parametrize(("victim", "other"), [("worker", "scheduler"), ("scheduler", "worker")])
def test_the_death_of_one_server_stops_the_other_and_is_told(
    launch: Callable[..., Launcher], victim: str, other: str
) -> None:
    running = launch("run", NO_TOKENIZER, "--", "sleep", "60")
    running.wait_for("ready at")
    survivor = running.child(other)
    running.child(victim).kill()
    status, output = running.end()
    assert status == 1
    assert f"the {victim} ended (SIGKILL). The end of its output:" in output
    assert is_gone(survivor)


def test_serve_starts_a_killed_worker_again_and_open_streams_go_on(
    launch: Callable[..., Launcher], folder: Path
) -> None:
    serving = launch("serve", NO_TOKENIZER, f"--listen=unix:{folder}/public.sock")
    serving.wait_for("ready at")
    with Client(f"unix:{folder}/public.sock") as client:
        generation = client.generate(token_ids=[1, 2], max_tokens=2000, temperature=0)
        tokens = list(next(generation).token_ids)
        for delay in ("0.5", "1"):
            worker = serving.child("worker")
            worker.kill()
            serving.wait_for(f"the worker ended (SIGKILL); starting it again in {delay} s")
            wait_for(lambda gone=worker: is_gone(gone), "it is gone")
            before = client.status().output_tokens
            while len(tokens) <= before:
                tokens += next(generation).token_ids
        generation.close()
    assert tokens == expected_tokens([1, 2], len(tokens), 100)
    serving.process.send_signal(signal.SIGINT)
    status, output = serving.end()
    assert status == 0, output


def test_restarts_come_later_and_later_until_it_has_run_steadily() -> None:
    restarts = Restarts(started=0.0)
    delays = []
    now = 0.0
    for _ in range(9):
        now += 1.0
        delay = restarts.ended(now)
        assert delay is not None
        delays.append(delay)
        assert restarts.ended(now) is None
        assert not restarts.is_due(now + delay - 0.1)
        now += delay
        assert restarts.is_due(now)
        restarts.started(now)
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert restarts.ended(now + 60.0) == 0.5


def test_a_server_that_does_not_start_is_told_with_its_own_words(
    launch: Callable[..., Launcher],
) -> None:
    running = launch("run", "--scheduler-args=--no-such-flag", "--", "true")
    status, output = running.end()
    assert status == 1
    assert "the scheduler ended (exit status 2)" in output
    assert "unrecognized arguments: --no-such-flag" in output


def test_nothing_outlives_a_killed_launcher(launch: Callable[..., Launcher]) -> None:
    running = launch("run", NO_TOKENIZER, "--", "sleep", "60")
    running.wait_for("ready at")
    launcher = psutil.Process(running.process.pid)
    # It says that the servers are ready before it starts the command.
    wait_for(lambda: len(launcher.children(recursive=True)) == 3, "the command is started")
    children = launcher.children(recursive=True)
    running.process.kill()
    wait_for(lambda: all(is_gone(child) for child in children), "they ended")
    assert [child.pid for child in children if not is_gone(child)] == []


@pytest.mark.parametrize(("mode", "expected"), [(["serve"], 0), (["run", "--", "true"], 130)])
def test_an_interrupt_while_starting_stops_both(
    launch: Callable[..., Launcher], folder: Path, mode: list[str], expected: int
) -> None:
    listen = [f"--listen=unix:{folder}/public.sock"] if mode == ["serve"] else []
    starting = launch(mode[0], LOST, *listen, *mode[1:])
    servers = [starting.child("worker"), starting.child("scheduler")]
    starting.process.send_signal(signal.SIGINT)
    status, output = starting.end()
    assert status == expected, output
    assert all(is_gone(server) for server in servers)


def test_an_address_in_use_is_refused_before_anything_starts(
    launch: Callable[..., Launcher], folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        status, output = launch("serve", NO_TOKENIZER, f"--listen={address}").end()
    assert status == 1
    assert output == f"deploy.local: another server listens at {address}; stop it first"
    assert os.listdir(folder) == []


def test_a_command_that_ignores_a_request_to_stop_is_killed_at_the_second(
    launch: Callable[..., Launcher],
) -> None:
    script = (
        "import os, signal, time;"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'not now\\n'));"
        "os.write(1, b'waiting\\n'); time.sleep(60)"
    )
    running = launch("run", NO_TOKENIZER, "--", sys.executable, "-c", script)
    running.wait_for("waiting")
    running.process.send_signal(signal.SIGTERM)
    running.wait_for("not now")  # two signals that come before one is heard are one
    assert running.process.poll() is None
    running.process.send_signal(signal.SIGTERM)
    status, _ = running.end()
    assert status == 128 + signal.SIGKILL


def test_servers_that_are_never_ready_are_given_up(launch: Callable[..., Launcher]) -> None:
    running = launch("run", LOST, "--ready-timeout=1", "--", "true")
    status, output = running.end()
    assert status == 1
    assert "the servers were not ready within 1 s" in output


def test_an_interrupt_of_the_terminal_is_the_commands_own_business(
    launch: Callable[..., Launcher],
) -> None:
    script = (
        "import signal, sys, time;"
        "signal.signal(signal.SIGINT, lambda *_: (print('mine', flush=True), sys.exit(5)));"
        "print('waiting', flush=True); time.sleep(60)"
    )
    running = launch("run", NO_TOKENIZER, "--", sys.executable, "-c", script)
    running.wait_for("waiting")
    os.killpg(running.process.pid, signal.SIGINT)
    status, output = running.end()
    assert (status, "mine" in output) == (5, True)
    assert "did not stop cleanly" not in output
