"""What a figure was measured on."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "triton", "transformers", "grpcio", "protobuf", "numpy")


def machine() -> dict[str, object]:
    """Processor, cores, Python, packages that are installed, commit, and UTC date."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": _packages(),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _commit() -> str:
    """Empty where there is no checkout, or no git."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    with contextlib.suppress(FileNotFoundError):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.stdout.strip()
    return ""
