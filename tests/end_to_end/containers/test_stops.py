"""Starts in any order, and stops, of containers whose first process is a server."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.containers import effects
from tests.end_to_end.containers.deployment import (
    IMAGES,
    LIVENESS,
    SCHEDULER,
    SIMULATED,
    WORKER,
    Deployment,
    wait_until,
)
from tests.end_to_end.containers.engine import docker, environment
from tests.end_to_end.containers.stream import Stream
from tests.slow_llama import TENSORS, slow_llama

Right = Callable[[int], list[int]]
SCHEDULER_IMAGE, WORKER_IMAGE = IMAGES["SCHEDULER_IMAGE"], IMAGES["WORKER_IMAGE"]
ALONE = "nanoserve-alone"
# Docker kills what has not ended by then, and the exit status is 137.
PATIENCE = 20


@contextmanager
def alone(image: str, *options: str) -> Iterator[None]:
    """A container that is on no network."""
    docker("run", "--detach", "--name", ALONE, "--network", "none", *options, image)
    try:
        yield
    finally:
        docker("rm", "--force", ALONE)


def logs() -> str:
    done = subprocess.run(
        ["docker", "logs", ALONE], env=environment(), capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


def stopped() -> tuple[int, float]:
    """Sends SIGTERM to its first process; exit status and seconds until its end."""
    began = time.monotonic()
    docker("stop", "--time", str(PATIENCE), ALONE)
    took = time.monotonic() - began
    return int(docker("inspect", "-f", "{{.State.ExitCode}}", ALONE)), took


def test_a_worker_that_loads_its_model_ends_with_0_on_sigterm(images: None, tmp_path: Path) -> None:
    """With half a CPU, so that loading takes long."""
    slow_llama(tmp_path)
    tmp_path.chmod(0o755)
    model = ("--volume", f"{tmp_path}:/models/current:ro")
    flags = ("--env", "NANOSERVE_MODEL=/models/current", "--cpus", "0.5", "--memory", "8g")
    with alone(WORKER_IMAGE, *model, *flags):
        wait_until(lambda: f"loading {TENSORS} tensors" in logs(), "it loads the model")
        status, took = stopped()
        assert "SIGTERM while loading: exit" in logs()
        assert "weights loaded" not in logs()
        assert (status, took < PATIENCE) == (0, True), logs()


def test_a_scheduler_with_front_ends_leaves_none_behind_on_sigterm(images: None) -> None:
    flags = ("--env", "NANOSERVE_NO_TOKENIZER=1", "--env", "NANOSERVE_FRONTENDS=2")
    with alone(SCHEDULER_IMAGE, *flags):
        wait_until(lambda: "listening on" in logs(), "it listens")
        wait_until(lambda: len(docker("top", ALONE).splitlines()) > 3, "it has children")
        status, took = stopped()
        assert (status, took < PATIENCE) == (0, True), logs()


def test_a_simulated_worker_serves_without_torch_and_without_a_model(images: None) -> None:
    with alone(SIMULATED, "--env", "NANOSERVE_SIMULATE=1"):
        wait_until(lambda: "listening on" in logs(), "it listens")
        docker("exec", ALONE, "python", "-m", "deploy.health")
        with pytest.raises(RuntimeError, match="No module named 'torch'"):
            docker("exec", ALONE, "python", "-c", "import torch")
        assert stopped()[0] == 0


@pytest.mark.parametrize("image", [SCHEDULER_IMAGE, WORKER_IMAGE])
def test_a_variable_that_no_flag_knows_stops_the_start(images: None, image: str) -> None:
    with alone(image, "--env", "NANOSERVE_NO_SUCH_FLAG=1"):
        assert docker("wait", ALONE).strip() == "2"
        assert "NANOSERVE_NO_SUCH_FLAG" in logs()


def test_a_scheduler_without_a_worker_waits_alive_and_gets_ready_by_itself(
    deployment: Deployment, secrets: Path, right: Right
) -> None:
    deployment.compose("stop", "worker")
    assert WORKER.state["ExitCode"] == 0
    deployment.compose("restart", "scheduler")
    wait_until(lambda: SCHEDULER.answers(LIVENESS), "the scheduler is alive")
    assert not SCHEDULER.answers("")
    assert "UNAVAILABLE" in Stream(secrets, 10).error()
    told = deployment.compose("logs", "--tail", "20", "scheduler")
    assert "waiting for the worker at worker:50052" in told
    deployment.compose("start", "worker")
    took = wait_until(lambda: SCHEDULER.answers(""), "the scheduler is ready")
    assert SCHEDULER.restarts == WORKER.restarts == 0
    stream = Stream(secrets, 10)
    assert stream.rest() == right(10)
    effects.note(
        "scheduler started without a worker",
        f"UNAVAILABLE with the reason; served {took:.1f} s after the worker's start",
    )


def test_a_stop_lets_streams_end_and_takes_no_others(
    deployment: Deployment, secrets: Path, right: Right
) -> None:
    stream = Stream(secrets, 900)
    stream.read(20)
    with subprocess.Popen(["docker", "stop", SCHEDULER.name], env=environment()):
        wait_until(lambda: not SCHEDULER.answers(""), "the scheduler drains")
        assert "UNAVAILABLE" in Stream(secrets, 10).error()
        assert stream.is_open
        assert stream.rest() == right(900)
    assert SCHEDULER.state["ExitCode"] == 0
    effects.record("scheduler stopped (others get UNAVAILABLE)", stream, 900)
    deployment.compose("start", "scheduler")
    wait_until(lambda: SCHEDULER.answers(""), "the scheduler is ready")
