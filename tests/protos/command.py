"""Runs the `nanoserve` command as a person does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import SECONDS

ROOT = Path(__file__).resolve().parents[2]
_TOKENS = ("NANOSERVE_TOKEN", "NANOSERVE_TOKEN_FILE")


def environment(**variables: str) -> dict[str, str]:
    """This process's, with the checkout's client importable and no server named."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "protos")} | variables
    for name in {"NANOSERVE_ADDRESS", "NANOSERVE_TLS_CA", *_TOKENS} - set(variables):
        env.pop(name, None)
    return env


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nanoserve.cli", *arguments]


def nanoserve(
    *arguments: str, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Output and exit status; `variables` are added to the environment."""
    return subprocess.run(
        command(*arguments),
        input=stdin,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
