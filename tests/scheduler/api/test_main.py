"""The process: flags, start without a worker, signals, exit status."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from nanoserve.v1 import inference_pb2, inference_pb2_grpc
from scheduler.__main__ import parser
from scheduler.api.model_folder import ModelFolder
from tests.waiting import SECONDS
from worker.model.fingerprint import fingerprint

ROOT = Path(__file__).resolve().parents[3]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "protos")}
STATIC = ("--policy", "static")
WITHOUT_WORKER = ("-m", "scheduler", "--worker", "127.0.0.1:1", "--metrics-listen", "off")


class Process:
    """A Python process with its log."""

    def __init__(self, *arguments: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = ""

    def wait_for(self, pattern: str, seconds: float = SECONDS) -> str:
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.log)):
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.popen.stderr], [], [], max(0, left))
            text = os.read(self.popen.stderr.fileno(), 65536).decode() if ready else ""
            assert text, f"no {pattern!r} in: {self.log}"
            self.log += text
        return match[1] if match.groups() else match[0]

    def exit_status(self, seconds: float = SECONDS) -> int:
        self.log += self.popen.communicate(timeout=seconds)[1]
        return self.popen.returncode


@pytest.fixture
def start() -> Iterator:
    started: list[Process] = []

    def run(*flags: str, program: Sequence[str] = WITHOUT_WORKER) -> Process:
        started.append(Process(*program, *flags))
        return started[-1]

    yield run
    for process in started:
        process.popen.kill()
        process.popen.wait()


@pytest.fixture
def model(smollm2_folder: Path) -> tuple[str, ...]:
    return ("--model", str(smollm2_folder), "--listen", "127.0.0.1:0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_a_worker_it_stays_up_says_so_and_drains(start, model, number):
    process = start(*model)
    address = process.wait_for(r"listening on (127\.0\.0\.1:\d+)")
    with grpc.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            list(stub.Generate(inference_pb2.GenerateRequest(text="x"), timeout=SECONDS))
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        assert raised.value.details().startswith("the server is not ready: ")
        status = stub.GetStatus(inference_pb2.GetStatusRequest(), timeout=SECONDS)
        assert (status.ready, status.model) == (False, "SmolLM2-135M-Instruct")
    process.popen.send_signal(number)
    assert process.exit_status() == 0
    assert "draining" in process.log
    assert "Traceback" not in process.log


# Serves a scripted engine whose only request takes longer than the test.
SERVING = """
import asyncio, logging
from scheduler.api.server import ServerConfig, serve
from scheduler.api.service import ServedModel
from tests.scheduler.api.scripted_engine import ScriptedEngine
logging.basicConfig(level="INFO")
engine = ScriptedEngine([5] * {tokens}, step_seconds=0.01)
config = ServerConfig(listen="127.0.0.1:0", drain_timeout=60)
asyncio.run(serve(config, ServedModel("tiny", None, frozenset()), engine))
"""


def running_call(process: Process, channels: contextlib.ExitStack) -> Iterator:
    """Its messages, of which the first has come."""
    address = process.wait_for(r"listening on (127\.0\.0\.1:\d+)")
    channel = channels.enter_context(grpc.insecure_channel(address))
    prompt = inference_pb2.TokenIds(ids=[1])
    call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(
        inference_pb2.GenerateRequest(token_ids=prompt), timeout=SECONDS
    )
    return itertools.chain([next(call)], call)


def test_one_signal_lets_a_running_call_finish(start):
    process = start(program=("-c", SERVING.format(tokens=100)))
    with contextlib.ExitStack() as channels:
        call = running_call(process, channels)
        process.popen.send_signal(signal.SIGTERM)
        last = list(call)[-1]
        assert last.finish_reason == inference_pb2.FINISH_REASON_LENGTH
        assert last.usage.output_tokens == 100
    assert process.exit_status() == 0


def test_a_second_signal_ends_it_at_once(start):
    process = start(program=("-c", SERVING.format(tokens=100_000)))
    with contextlib.ExitStack() as channels:
        running_call(process, channels)
        process.popen.send_signal(signal.SIGTERM)
        process.wait_for("draining for at most 60 seconds")
        assert process.popen.poll() is None
        process.popen.send_signal(signal.SIGTERM)
        assert process.exit_status() == 128 + signal.SIGTERM


def test_a_signal_before_it_serves_ends_it_too(start, model):
    process = start(*model)
    time.sleep(0.15)  # it is importing
    process.popen.send_signal(signal.SIGTERM)
    assert process.exit_status() in (0, -signal.SIGTERM)


# A signal falls where what its handler raises is lost, as in some libraries' imports.
LOST_SIGNAL = """
import contextlib, os, signal, sys
from scheduler import __main__

def lose_a_signal(*flags):
    start_logging(*flags)
    with contextlib.suppress(SystemExit):
        os.kill(os.getpid(), signal.SIGTERM)

start_logging, __main__.start_logging = __main__.start_logging, lose_a_signal
sys.exit(__main__.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("flags", [(), ("--frontends", "1")], ids=["alone", "front end"])
def test_a_signal_whose_exception_a_library_swallows_is_not_lost(start, model, flags):
    process = start(*WITHOUT_WORKER[2:], *model, *flags, program=("-c", LOST_SIGNAL))
    assert process.exit_status() == 0
    assert "draining" in process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize("flags", [(), ("--frontends", "1")], ids=["alone", "front end"])
def test_as_process_1_it_ends_on_sigterm(start, model, flags):
    if subprocess.run(["unshare", "--fork", "--pid", "true"], check=False).returncode:
        pytest.skip("this user may not make process namespaces")
    command = ["unshare", "--fork", "--pid", "--kill-child", sys.executable, "-m", "scheduler"]
    popen = subprocess.Popen(
        [*command, *WITHOUT_WORKER[2:], *model, *flags],
        cwd=ROOT,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in popen.stderr:
        if "listening on" in line:
            break
    children = Path(f"/proc/{popen.pid}/task/{popen.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    popen.communicate(timeout=SECONDS)
    assert popen.returncode == 0


def test_a_port_in_use_is_an_error_with_a_status(start, model):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = start(*model[:2], "--listen", f"127.0.0.1:{port}")
        assert process.exit_status() == 1
    assert "Traceback" not in process.log
    assert f"cannot start: --listen 127.0.0.1:{port}: cannot be bound" in process.log


def test_a_metrics_port_in_use_stops_the_start(start):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        process = start("--no-tokenizer", "--metrics-listen", address)
        assert process.exit_status() == 1
    assert f"cannot start: --metrics-listen {address}: cannot be bound" in process.log


def test_metrics_are_served_where_the_log_says(start):
    process = start("--no-tokenizer", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
    url = process.wait_for(r"metrics at (http://127\.0\.0\.1:\d+/metrics)")
    with urllib.request.urlopen(url, timeout=SECONDS) as response:
        assert b"\nnanoserve_ready 0.0\n" in response.read()


def test_every_line_of_a_json_log_is_an_object_with_a_time_in_utc(start):
    process = start("--no-tokenizer", "--listen", "127.0.0.1:0", "--log-format", "json")
    process.wait_for("listening on")
    process.popen.send_signal(signal.SIGTERM)
    assert process.exit_status() == 0
    lines = [json.loads(line) for line in process.log.splitlines()]
    assert "stopped" in [line["message"] for line in lines]
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert {"level", "logger", "message"} <= line.keys()


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        ([], 2, "give --model DIR, or --no-tokenizer"),
        (["--max-queue", "x"], 2, "--max-queue"),
        (["--model", "nowhere"], 1, "cannot start: --model nowhere: no such folder"),
        (["--no-tokenizer", "--listen", "0.0.0.0:1"], 1, "cannot start: --listen 0.0.0.0:1"),
        (["--no-tokenizer", "--worker", "10.0.0.1:1"], 1, "cannot start: --worker 10.0.0.1:1"),
        (
            ["--no-tokenizer", "--worker-tls-ca", "x"],
            1,
            "needs --worker-tls-cert and --worker-tls-",
        ),
        (["--no-tokenizer", "--metrics-listen", "9101"], 1, "cannot start: --metrics-listen 9101"),
        (["--no-tokenizer", "--metrics-listen", "[::]:1"], 1, "start: --metrics-listen [::]:1"),
        (["--no-tokenizer", "--log-format", "xml"], 2, "--log-format"),
        (["--no-tokenizer", "--max-queue", "-1"], 1, "cannot start: max_queue is -1"),
        (["--no-tokenizer", "--drain-timeout", "nan"], 1, "cannot start: --drain-timeout nan"),
        (["--no-tokenizer", "--static-batch", "8"], 2, "need --policy static"),
        (["--no-tokenizer", *STATIC, "--static-batch", "0"], 1, "static_batch is 0, must be at"),
        (["--no-tokenizer", *STATIC, "--static-wait", "nan"], 1, "static_wait is nan, must be"),
        (["--no-tokenizer", "--decode-steps", "0"], 1, "decode_steps is 0, must be at least 1"),
    ],
)
def test_wrong_flags_are_an_error_that_says_what_to_do(start, flags, status, message):
    process = start(*flags)
    assert process.exit_status() == status
    assert message in process.log
    assert "Traceback" not in process.log


def test_every_flag_has_help_with_its_default():
    text = parser().format_help()
    flags = ("--model", "--worker", "--listen", "--pipeline-depth", "--audit", "--log-text")
    for flag in flags:
        assert flag in text
    for action in parser()._actions:
        assert action.help, action.option_strings
    addresses = ("127.0.0.1:50051", "127.0.0.1:50052", "127.0.0.1:9101")
    for default in (*addresses, "30.0", "3600.0", "1024"):
        assert f"(default: {default})" in " ".join(text.split())


def test_it_imports_neither_torch_nor_transformers():
    code = (
        "import sys, scheduler.run\n"
        "print({'torch', 'transformers', 'worker', 'kernels', 'grpc'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
        text=True,
    )
    # grpc shows that the modules were really loaded.
    assert result.stdout.strip() == "{'grpc'}"


def test_the_fingerprint_rule_is_the_workers(smollm2_folder):
    """Two copies of one rule, since the scheduler never imports the worker."""
    assert ModelFolder.read(smollm2_folder).fingerprint == fingerprint(smollm2_folder)
