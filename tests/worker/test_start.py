"""What the worker sets before it loads torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest


def spin_count(**environment: str) -> str:
    """What libgomp says it was loaded with."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_"))}
    shown = subprocess.run(
        [sys.executable, "-c", "from worker.start import limit_spinning as f; f(); import torch"],
        env=clean | {"OMP_DISPLAY_ENV": "VERBOSE"} | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    found = re.search(r"GOMP_SPINCOUNT = '(\w+)'", shown)
    assert found, shown
    return found[1]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, "1000"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
)
def test_torchs_threads_spin_briefly_unless_the_environment_says_otherwise(environment, expected):
    assert spin_count(**environment) == expected
