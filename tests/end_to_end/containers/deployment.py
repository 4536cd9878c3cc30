"""deploy/compose.yaml, run on the engine of the test."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.end_to_end.containers.engine import COMPOSE, ROOT, docker, environment, output

PROJECT = "nanoserve-test"
ADDRESS = "localhost:50051"
LIVENESS = "nanoserve.liveness"
IMAGES = {
    "SCHEDULER_IMAGE": "nanoserve-scheduler:test",
    "WORKER_IMAGE": "nanoserve-worker:test",
    "MODEL_IMAGE": "nanoserve-model:test",
    "LOADTEST_IMAGE": "nanoserve-loadtest:test",
    "PROMETHEUS_IMAGE": "nanoserve-prometheus:test",
}
ROLLED = "nanoserve-worker:rolled"
SIMULATED = "nanoserve-worker:simulated"
PROFILES = ("--profile", "observe", "--profile", "loadtest")


class Deployment:
    """`models`: the host's folder of models, in which `model` is one."""

    def __init__(self, models: Path, model: str) -> None:
        self.folder = models / model
        variables = {"MODELS": str(models), "MODEL": f"/models/{model}"}
        self._variables = {**IMAGES, **variables, "HEALTH_INTERVAL": "1s"}

    def compose(self, *arguments: str, timeout: float = 180, **variables: str) -> str:
        files = ROOT / "deploy/compose.yaml", Path(__file__).with_name("compose.test.yaml")
        flags = [part for file in files for part in ("-f", str(file))]
        command = [str(COMPOSE), *flags, *PROFILES, "--env-file", "/dev/null", "-p", PROJECT]
        return output([*command, *arguments], timeout, {**self._variables, **variables})

    def start(self, service: str, *flags: str, **variables: str) -> None:
        """Makes it, or makes it anew if something of it is different, and waits until it is
        healthy. With --no-deps it alone. Raises RuntimeError with all logs."""
        try:
            self.compose("up", "--no-build", "--wait", "--detach", *flags, service, **variables)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{self.compose('logs')}") from None

    def end(self) -> None:
        """Raises AssertionError if something of it is left."""
        self.compose("down", "--volumes", "--timeout", "20")
        label = f"label=com.docker.compose.project={PROJECT}"
        left = [docker(kind, "ls", "-q", "--filter", label) for kind in ("volume", "network")]
        assert [*left, docker("ps", "-aq")] == ["", "", ""]


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
    def is_healthy(self) -> bool:
        return bool(self.state["Running"]) and self.state["Health"]["Status"] == "healthy"

    def succeeds(self, *command: str) -> bool:
        """Whether `command` does, in it."""
        whole = ["docker", "exec", self.name, *command]
        done = subprocess.run(whole, env=environment(), capture_output=True, timeout=60)
        return done.returncode == 0

    def answers(self, service: str) -> bool:
        """Whether the health of `service` is SERVING, as the check in the image sees it."""
        return self.succeeds("python", "-m", "deploy.health", "--service", service)


WORKER, SCHEDULER = Container("worker"), Container("scheduler")


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = 60) -> float:
    """Returns the seconds it took; raises AssertionError when they are over."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.2)
    return time.monotonic() - began
