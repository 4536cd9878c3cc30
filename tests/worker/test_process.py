"""The worker as a process: what it prints, when it ends and with which code."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest

from nanoserve.v1 import worker_pb2, worker_pb2_grpc
from tests.slow_llama import TENSORS, slow_llama
from tests.tiny_llama import tiny_llama
from tests.waiting import SECONDS, wait_for
from tests.worker.running_worker import Stream, connect
from tests.worker.step_messages import first_step, second_step
from tests.worker.worker_process import ROOT, WorkerProcess, worker_process
from worker.__main__ import parser

SIMULATED = ("--simulate", "--listen", "127.0.0.1:0", "--block-size", "4", "--num-blocks", "40")
# To meet a worker while it loads: one that we come too late for has listened already.
TRIES = 5


def test_a_worker_says_where_it_listens_and_ends_with_0_on_sigterm() -> None:
    with worker_process(*SIMULATED) as worker:
        with grpc.insecure_channel(worker.address()) as channel:
            connect(worker_pb2_grpc.WorkerServiceStub(channel))
        assert worker.stop() == 0
        assert "SIGTERM: draining for at most 30 s" in worker.log
        assert worker.lines[-1].endswith("stopped\n")


def test_an_open_stream_is_served_until_it_asks_for_nothing_more() -> None:
    with (
        worker_process(*SIMULATED, "--step-ms", "700") as worker,
        grpc.insecure_channel(worker.address()) as channel,
    ):
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.send(first_step(incarnation), second_step(incarnation))
        wait_for_step(stub)
        worker.process.send_signal(signal.SIGINT)
        worker.wait_for("SIGINT: draining")
        assert [next(stream.call).HasField("refusal") for _ in range(2)] == [False, False]
        assert worker.wait() == 0


def test_a_second_signal_ends_it_at_once() -> None:
    with (
        worker_process(*SIMULATED, "--step-ms", "30000") as worker,
        grpc.insecure_channel(worker.address()) as channel,
    ):
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.send(first_step(incarnation))
        wait_for_step(stub)
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_for("SIGTERM: draining")
        assert worker.stop() == 128 + signal.SIGTERM


def test_the_drain_timeout_bounds_a_step_that_never_ends() -> None:
    flags = ("--step-ms", "300000", "--drain-timeout", "0.2")
    with (
        worker_process(*SIMULATED, *flags) as worker,
        grpc.insecure_channel(worker.address()) as channel,
    ):
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.send(first_step(incarnation))
        wait_for_step(stub)
        assert worker.stop() == 0


def test_a_crash_ends_it_with_1_and_a_traceback() -> None:
    with (
        worker_process(*SIMULATED, "--crash-tokens", "14") as worker,
        grpc.insecure_channel(worker.address()) as channel,
    ):
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.send(first_step(incarnation))
        assert worker.wait() == 1
        assert "fatal: a crash token was computed" in worker.log
        assert "Traceback" in worker.log


def test_the_simulated_worker_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, worker.process, worker.start, worker.__main__ as main\n"
        f"worker.start.make_executor(main.parse(['--simulate', '--model', {str(tmp_path)!r}]))\n"
        "assert 'worker.simulate' in sys.modules\n"
        "print([name for name in ('torch', 'triton', 'transformers') if name in sys.modules])"
    )
    tiny_llama(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": "protos"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_a_port_in_use_stops_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with worker_process("--simulate", "--listen", address) as worker:
            assert worker.wait() == 1
            assert f"cannot start: cannot listen on {address}: Address already in use" in worker.log


def test_a_socket_file_of_a_dead_worker_is_taken_over_and_that_of_a_live_one_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "worker.sock"
    address = f"unix:{path}"
    with worker_process("--simulate", "--listen", address) as worker:
        assert worker.address() == address
        worker.stop(signal.SIGKILL)
    assert path.exists()
    with worker_process("--simulate", "--listen", address) as worker:
        assert worker.address() == address
        with worker_process("--simulate", "--listen", address) as second:
            assert second.wait() == 1
            assert f"cannot listen on {address}: another process listens there" in second.log
        with grpc.insecure_channel(address) as channel:
            connect(worker_pb2_grpc.WorkerServiceStub(channel))
        assert worker.stop() == 0
    assert not path.exists()


def test_it_says_where_its_metrics_are_and_serves_them() -> None:
    with worker_process(*SIMULATED, "--metrics-listen", "127.0.0.1:0") as worker:
        url = worker.wait_for(r"metrics at (http://127\.0\.0\.1:[1-9]\d*/metrics)$")[1]
        worker.address()
        with urllib.request.urlopen(url, timeout=SECONDS) as response:
            text = response.read().decode()
        assert "\nnanoserve_worker_pool_blocks 40.0\n" in text
        (load,) = re.findall(r"^nanoserve_worker_load_seconds (\S+)$", text, re.MULTILINE)
        assert float(load) > 0
        assert worker.stop() == 0


def test_a_metrics_port_in_use_stops_the_start_and_names_flag_and_value() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with worker_process(*SIMULATED, "--metrics-listen", address) as worker:
            assert worker.wait() == 1
            assert (
                f"cannot start: --metrics-listen {address}: Address already in use: give another "
                "port, 0 for a free one, or off"
            ) in worker.log
            assert "listening" not in worker.log


def test_every_line_of_a_json_log_is_an_object() -> None:
    with worker_process(*SIMULATED, "--log-format", "json", "--crash-tokens", "14") as worker:
        with grpc.insecure_channel(json_address(worker)) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            incarnation = connect(stub).incarnation
            stream = Stream(stub, 5)
            stream.send(first_step(incarnation))
            assert worker.wait() == 1
        lines = [json.loads(line) for line in worker.lines]
        assert [line["level"] for line in lines] == ["info", "info", "critical"]
        assert lines[-1]["message"] == "fatal: a crash token was computed"
        assert "Traceback" in lines[-1]["exception"]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (
            ("--metrics-listen", "0.0.0.0:0"),
            2,
            "--metrics-listen 0.0.0.0:0 can be reached from other machines, and metrics have no "
            "encryption and ask nobody who he is: use a loopback address or off, or, where only "
            "Prometheus can reach it, say --metrics-unprotected",
        ),
        (
            ("--metrics-listen", "unix:/tmp/metrics"),
            2,
            "--metrics-listen 'unix:/tmp/metrics' must be HOST:PORT with port 0 to 65535, or off",
        ),
        (
            ("--listen", "0.0.0.0:0"),
            2,
            "listen address 0.0.0.0:0 can be reached from other machines, without --tls-cert, "
            "--tls-key and --tls-client-ca: give them (python -m deploy.secrets init makes the "
            "files), use a loopback address or a unix socket, or say --insecure",
        ),
        (
            ("--tls-cert", "c.pem", "--tls-key", "k.pem"),
            2,
            "--tls-cert c.pem, --tls-key k.pem: needs --tls-client-ca as well: give all of them or "
            "none",
        ),
        (
            ("--tls-cert", "c.pem", "--tls-key", "k.pem", "--tls-client-ca", "ca.pem"),
            1,
            "cannot start: --tls-cert c.pem: cannot be read: No such file or directory",
        ),
        (
            ("--listen", "127.0.0.1"),
            2,
            "listen address '127.0.0.1' must be HOST:PORT with port 0 to 65535, or unix:PATH",
        ),
        (("--num-blocks", "1"), 1, "num_blocks is 1, must be 2 <= num_blocks < 2^31"),
        (("--num-blocks", "0"), 1, "num_blocks is 0, must be 2 <= num_blocks < 2^31"),
        (
            ("--max-rows", "64", "--max-step-tokens", "32"),
            1,
            "max_step_tokens is 32, must be at least max_rows (64), so that every row can decode "
            "in one step",
        ),
    ],
)
def test_flags_that_cannot_work_stop_the_start(
    flags: tuple[str, ...], code: int, message: str
) -> None:
    with worker_process("--simulate", *flags) as worker:
        assert worker.wait() == code
        assert message in worker.log
        assert "Traceback" not in worker.log


def test_another_machine_may_reach_it_if_asked_for() -> None:
    with worker_process("--simulate", "--listen", "0.0.0.0:0", "--insecure") as worker:
        assert worker.address().startswith("0.0.0.0:")


def test_a_model_folder_without_a_config_stops_the_start(tmp_path: Path) -> None:
    with worker_process("--model", str(tmp_path), "--listen", "127.0.0.1:0") as worker:
        assert worker.wait() == 1
        assert f"cannot start: {tmp_path}/config.json does not exist" in worker.log
        assert "Traceback" not in worker.log


def test_a_real_worker_starts_and_prints_its_pool(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    flags = ("--model", str(tmp_path), "--listen", "127.0.0.1:0", "--kv-memory", "1MiB")
    with worker_process(*flags, "--device", "cpu") as worker:
        with grpc.insecure_channel(worker.address()) as channel:
            response = connect(worker_pb2_grpc.WorkerServiceStub(channel))
        assert (response.device, response.model.dtype) == ("cpu", "float32")
        assert response.pool.num_blocks * response.pool.bytes_per_block == 2**20
        assert f"K/V pool: {response.pool.num_blocks} blocks of 16 tokens" in worker.log
        assert worker.log.index("weights loaded") < worker.log.index("warming up")
        assert worker.log.index("warming up") < worker.log.index("listening on")
        assert worker.stop() == 0


def test_sigterm_during_the_load_ends_it_with_0(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    for _ in range(TRIES):
        with worker_process("--model", str(tmp_path), "--listen", "127.0.0.1:0") as worker:
            # It imports torch from then on, for a second and more.
            wait_for(lambda one=worker: is_caught(one, signal.SIGTERM), "it has its handlers")
            assert worker.stop() == 0
        if "listening" not in worker.log:
            return
    pytest.fail(f"it was never asked before it listened, or did not hear it: {worker.log}")


def test_every_flag_has_help_with_its_default() -> None:
    text = " ".join(parser().format_help().split())
    for action in parser()._actions:
        if action.dest in ("help", "print_config"):  # they are no settings
            continue
        assert "(default: " in (action.help or ""), action.option_strings
        takes_value = action.nargs != 0
        assert not takes_value or action.metavar or action.choices, action.option_strings
    values = ("30.0", "off", "human", "auto", "0.9", "16", "8", "none")
    for default in ("127.0.0.1:50052", "127.0.0.1:9102", *values):
        assert f"(default: {default})" in text
    assert "--drain-timeout SECONDS" in text
    assert "--num-blocks BLOCKS" in text


def is_caught(worker: WorkerProcess, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for a signal."""
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    (mask,) = re.findall(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def json_address(worker: WorkerProcess) -> str:
    return worker.wait_for(r'"listening on ([^"]+)"')[1]


def wait_for_step(stub: worker_pb2_grpc.WorkerServiceStub) -> None:
    asked = worker_pb2.WorkerServiceGetStatusRequest()
    wait_for(lambda: stub.GetStatus(asked).steps > 0, "it has a step")


def can_make_namespaces() -> bool:
    unshare = shutil.which("unshare")
    command = [unshare or "", "--fork", "--pid", "--mount-proc", "true"]
    return bool(unshare) and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_make_namespaces(), reason="unshare is not permitted here")
@pytest.mark.parametrize("while_loading", [True, False])
def test_as_process_1_it_ends_with_0_on_sigterm(while_loading: bool, tmp_path: Path) -> None:
    """As in a container, where a process without a handler would ignore the signal."""
    flags: tuple[str, ...] = SIMULATED
    if while_loading:
        slow_llama(tmp_path)
        flags = ("--model", str(tmp_path), "--listen", "127.0.0.1:0", "--device", "cpu")
    prefix = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")
    for _ in range(TRIES):
        with worker_process(*flags, prefix=prefix) as worker:
            worker.wait_for(f"loading {TENSORS} tensors" if while_loading else "listening on")
            assert signal_child(worker) == 0
        if "weights loaded" not in worker.log:
            break
    assert "weights loaded" not in worker.log
    assert ("SIGTERM while loading: exit" in worker.log) is while_loading


def signal_child(worker: WorkerProcess) -> int:
    """Sends SIGTERM to process 1 of the namespace; `unshare` ends with its code."""
    path = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children")
    (child,) = path.read_text().split()
    subprocess.run(["kill", "-TERM", child], check=True)
    return worker.wait()
