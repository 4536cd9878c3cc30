"""The Triton kernels in Triton's interpreter, which a process has from its start or never."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(600)  # a tenth of that, but for other work on the cores
@pytest.mark.parametrize("names", [("attention",), ("invariant", "small_ops")])
def test_the_triton_face_equals_the_oracle_in_the_interpreter(names: tuple[str, ...]) -> None:
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
        *(str(HERE / f"interpreted_{name}.py") for name in names),
    ]  # fmt: skip
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    for variable in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(variable, None)
    done = subprocess.run(
        command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
