"""The load tool's container, which asks without end until it is stopped."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from deploy.loadtest.timeline import Run
from tests.end_to_end.containers.deployment import PROJECT, SCHEDULER, Deployment, wait_until
from tests.end_to_end.containers.engine import docker, environment

INTERRUPTED = 130
_NAME = f"{PROJECT}-load"
_FLAGS = (
    *("run", "--concurrency", "3", "--seconds", "900", "--drain", "0", "--processes", "1"),
    *("--prompt-len", "uniform:16:128", "--output-len", "uniform:16:192"),
    *("--save", "/runs/run.json.gz"),
)


_SCRAPE = (
    "import urllib.request as u; print(u.urlopen('http://scheduler-metrics:9101/metrics').read())"
)


def _is_served() -> bool:
    text = docker("exec", SCHEDULER.name, "python", "-c", _SCRAPE)
    return "nanoserve_num_requests_running 3.0" in text


class Load:
    def __init__(self, deployment: Deployment) -> None:
        options = ("--detach", "--no-deps", "--name", _NAME)
        deployment.compose("run", *options, "loadtest", *_FLAGS)
        wait_until(_is_served, "its requests run")
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self._began

    def stop(self, folder: Path) -> Run:
        """What the tool saved."""
        assert docker("inspect", "-f", "{{.State.Running}}", _NAME).strip() == "true", self._said()
        docker("kill", "--signal", "INT", _NAME)
        status = int(docker("wait", _NAME))
        assert status == INTERRUPTED, self._said()
        docker("cp", f"{_NAME}:/runs/run.json.gz", str(folder))
        return Run.load(folder / "run.json.gz")

    def _said(self) -> str:
        command = ["docker", "logs", _NAME]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True)
        return done.stdout + done.stderr

    def remove(self) -> None:
        docker("rm", "--force", _NAME)
