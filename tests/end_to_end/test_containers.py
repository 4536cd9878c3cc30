"""The images and deploy/compose.yaml, on a real Docker engine: `make test-containers`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end import engine
from tests.end_to_end.engine import IMAGES, PROJECT, Container, client, compose, docker, wait_until
from worker.simulated_tokens import expected_tokens

VOCAB = 1000
PROMPT = [3, 1, 4, 1, 5]
# Decode steps of 20 ms: two seconds and more.
COUNT = 120
ROLLED = "nanoserve-worker:rolled"
PROMETHEUS = "nanoserve-prometheus:test"
ASKED = "http://127.0.0.1:9090/api/v1/"
LIVENESS = "nanoserve.liveness"
WORKER, SCHEDULER = Container("worker"), Container("scheduler")

pytestmark = [
    pytest.mark.skipif("TEST_CONTAINERS" not in os.environ, reason="run by make test-containers"),
    pytest.mark.skipif(bool(engine.missing()), reason=engine.missing()),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An engine that has the images, cut off from every network."""
    engine.script("up", "build")
    try:
        if not docker("images", "-q", engine.BASE):
            engine.script("base", engine.BASE)
        engine.build("scheduler", "scheduler", IMAGES["SCHEDULER_IMAGE"])
        simulated = ("--build-arg", "DEVICE=simulated")
        engine.build("worker", "worker", IMAGES["WORKER_IMAGE"], *simulated)
        engine.build("worker", "worker", ROLLED, *simulated, "--build-arg", "REVISION=rolled")
        if shutil.which("prometheus"):
            engine.build_prometheus(tmp_path_factory.mktemp("prometheus"), PROMETHEUS)
        engine.script("up", "test")
        yield
    finally:
        engine.script("down")


@pytest.fixture(scope="module")
def secrets(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The deployment, serving; the client's folder of secrets."""
    folder = tmp_path_factory.mktemp("client")
    try:
        compose("up", "--no-build", "--wait", "--detach")
        compose("cp", "init:/secrets/client/.", str(folder))
        yield folder
    finally:
        compose("--profile", "observe", "down", "--volumes", "--timeout", "20")
        label = f"label=com.docker.compose.project={PROJECT}"
        left = [docker(kind, "ls", "-q", "--filter", label) for kind in ("volume", "network")]
        assert [*left, docker("ps", "-aq")] == ["", "", ""]


def right(count: int = COUNT) -> list[int]:
    return expected_tokens(PROMPT, count, VOCAB)


def test_a_client_with_ca_and_token_is_served_and_others_are_refused(secrets: Path) -> None:
    assert client(PROMPT, 10, secrets).rest() == right(10)
    assert "UNAUTHENTICATED no token" in client(PROMPT, 10, secrets, token=False).error()
    assert client(PROMPT, 10, None).error().startswith("UNAVAILABLE")


def test_a_token_made_later_lets_its_holder_in_without_a_restart(
    secrets: Path, tmp_path: Path
) -> None:
    shutil.copy(secrets / "ca.pem", tmp_path)
    hashes = ("--hashes", "/secrets/scheduler/token-hashes")
    token = compose("run", "--rm", "-T", "init", "token", "second", *hashes)
    (tmp_path / "token").write_text(token)

    def is_let_in() -> bool:
        return client(PROMPT, 1, tmp_path).ended() == 0

    wait_until(is_let_in, "the scheduler has read the file again")
    assert client(PROMPT, 10, secrets).rest() == right(10)


def test_each_process_is_the_first_of_its_container_and_has_no_rights(secrets: Path) -> None:
    for container, package in ((WORKER, "worker"), (SCHEDULER, "scheduler")):
        process = Path("/proc", str(container.state["Pid"]))
        command = (process / "cmdline").read_text().split("\0")
        assert command[:3] == ["python", "-m", package]
        status = dict(
            line.split(":\t", 1) for line in (process / "status").read_text().splitlines()
        )
        assert status["Uid"].split() == ["10001"] * 4
        assert int(status["CapBnd"], 16) == 0
        assert status["NoNewPrivs"] == "1"
        with pytest.raises(RuntimeError, match="Read-only file system"):
            docker("exec", "-u", "0", container.name, "touch", "/app/file")


def test_the_worker_answers_only_the_scheduler_and_reaches_no_other_network(secrets: Path) -> None:
    networks = "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}} {{end}}"
    assert docker("inspect", "-f", networks, WORKER.name).split() == [f"{PROJECT}_link"]
    assert docker("network", "inspect", "-f", "{{.Internal}}", f"{PROJECT}_link").strip() == "true"
    assert docker("port", WORKER.name) == ""
    assert docker("port", SCHEDULER.name).split()[-1] == "127.0.0.1:50051"
    probe = "import os; os.environ.pop('NANOSERVE_TLS_CLIENT_CA'); from deploy.health import main"
    with pytest.raises(RuntimeError, match="UNAVAILABLE"):
        docker("exec", WORKER.name, "python", "-c", f"{probe}; raise SystemExit(main([]))")


@pytest.mark.skipif(not shutil.which("prometheus"), reason="Prometheus is not installed")
def test_prometheus_finds_both_servers_and_its_rules(secrets: Path) -> None:
    variables = {"PROMETHEUS_IMAGE": PROMETHEUS, "PROMETHEUS_PORT": "9090"}
    observe = ("--profile", "observe")
    compose(*observe, "up", "--no-build", "--no-deps", "--detach", "prometheus", **variables)

    def ask(path: str) -> dict:
        code = f"import urllib.request as u; print(u.urlopen({ASKED + path!r}).read().decode())"
        answer = docker("exec", Container("prometheus").name, "python3", "-c", code)
        return json.loads(answer)["data"]

    def up() -> dict[str, str]:
        result = ask("query?query=up")["result"]
        return {one["metric"]["job"]: one["value"][1] for one in result}

    wait_until(lambda: Container("prometheus").listens, "Prometheus listens")
    wait_until(lambda: up() == {"scheduler": "1", "worker": "1"}, "both are scraped")
    link = f'(index .NetworkSettings.Networks "{PROJECT}_link").IPAddress'
    address = docker("inspect", "-f", f"{{{{{link}}}}}", SCHEDULER.name).strip()
    assert f"metrics at http://{address}:9101/metrics" in compose("logs", "scheduler")
    (group,) = ask("rules")["groups"]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
    assert len(group["rules"]) > 5


def test_a_stream_goes_on_with_its_tokens_when_the_worker_is_killed(secrets: Path) -> None:
    """By kill -9 as the kernel does it: `docker kill` is a wish that it stays down."""
    before = WORKER.restarts
    stream = client(PROMPT, COUNT, secrets)
    stream.read(20)
    os.kill(WORKER.state["Pid"], signal.SIGKILL)
    assert stream.rest() == right()
    assert WORKER.restarts == before + 1
    wait_until(lambda: WORKER.is_healthy, "the worker is healthy again")


def test_a_stream_goes_on_with_its_tokens_when_the_worker_stands_still(secrets: Path) -> None:
    stream = client(PROMPT, COUNT, secrets)
    stream.read(20)
    docker("pause", WORKER.name)
    try:
        wait_until(lambda: not SCHEDULER.answers(""), "the scheduler gives the worker up")
        assert SCHEDULER.answers(LIVENESS)
    finally:
        docker("unpause", WORKER.name)
    assert stream.rest() == right()


def test_a_stream_goes_on_with_its_tokens_when_the_link_was_cut(secrets: Path) -> None:
    stream = client(PROMPT, COUNT, secrets)
    stream.read(20)
    link = f"{PROJECT}_link"
    docker("network", "disconnect", link, WORKER.name)
    try:
        wait_until(lambda: not SCHEDULER.answers(""), "the scheduler gives the worker up")
    finally:
        docker("network", "connect", "--alias", "worker", link, WORKER.name)
    assert stream.rest() == right()


def test_a_worker_is_rolled_to_another_image_under_a_stream(secrets: Path) -> None:
    before = docker("inspect", "-f", "{{.Image}}", WORKER.name)
    stream = client(PROMPT, 500, secrets)
    stream.read(20)
    compose("up", "--no-build", "--no-deps", "--wait", "--detach", "worker", WORKER_IMAGE=ROLLED)
    assert docker("inspect", "-f", "{{.Image}}", WORKER.name) != before
    assert stream.rest() == right(500)


def test_a_scheduler_without_a_worker_waits_alive_and_gets_ready_by_itself(secrets: Path) -> None:
    compose("stop", "worker")
    assert WORKER.state["ExitCode"] == 0
    compose("restart", "scheduler")
    wait_until(lambda: SCHEDULER.answers(LIVENESS), "the scheduler is alive")
    assert not SCHEDULER.answers("")
    assert SCHEDULER.restarts == 0
    assert "waiting for the worker at worker:50052" in compose("logs", "--tail", "20", "scheduler")
    compose("start", "worker")
    wait_until(lambda: SCHEDULER.answers(""), "the scheduler is ready")
    assert client(PROMPT, 10, secrets).rest() == right(10)


def test_a_stop_lets_streams_end_and_takes_no_others(secrets: Path) -> None:
    stream = client(PROMPT, 500, secrets)
    stream.read(20)
    with subprocess.Popen(["docker", "stop", SCHEDULER.name], env=engine.environment()):
        wait_until(lambda: not SCHEDULER.answers(""), "the scheduler drains")
        assert "UNAVAILABLE" in client(PROMPT, 10, secrets).error()
        assert stream.is_open
        assert stream.rest() == right(500)
    assert SCHEDULER.state["ExitCode"] == 0
    compose("start", "scheduler")
    wait_until(lambda: SCHEDULER.answers(""), "the scheduler is ready")
