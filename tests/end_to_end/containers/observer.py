"""Prometheus of the deployment, asked as from its host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.end_to_end.containers.deployment import Container
from tests.end_to_end.containers.engine import ROOT, SCRIPT, docker

_URL = "http://127.0.0.1:9090"


class Observer:
    def __init__(self) -> None:
        self.container = Container("prometheus")

    @property
    def listens(self) -> bool:
        code = "import socket; socket.create_connection(('127.0.0.1', 9090), 5)"
        return self.container.succeeds("python3", "-c", code)

    def ask(self, path: str) -> dict:
        """The data of an answer of its API."""
        url = f"{_URL}/api/v1/{path}"
        code = f"import urllib.request as u; print(u.urlopen({url!r}).read().decode())"
        return json.loads(docker("exec", self.container.name, "python3", "-c", code))["data"]

    def values(self, query: str) -> dict[str, float]:
        """Of an instant query that needs no quoting, by job."""
        result = self.ask(f"query?query={query}")["result"]
        return {one["metric"].get("job", ""): float(one["value"][1]) for one in result}

    def plot(self, folder: Path, minutes: float) -> subprocess.CompletedProcess[str]:
        """Runs the tool that plots the dashboard's panels."""
        tool = (sys.executable, "-m", "deploy.observe", "--prometheus", _URL)
        return subprocess.run(
            ["bash", str(SCRIPT), "in", *tool, "--minutes", f"{minutes}", "--out", str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/protos"},
            capture_output=True,
            text=True,
            timeout=120,
        )
