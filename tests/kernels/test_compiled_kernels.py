"""Every Triton kernel compiles for sm_90: no GPU needed, but a process without the interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.shapes import TRITON_HEAD_DIMS


@pytest.mark.timeout(600)  # a fifteenth of that, but for other work on the cores
def test_every_kernel_compiles_for_sm_90(tmp_path: Path) -> None:
    script = Path(__file__).with_name("compile_for_sm90.py")
    root = script.parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=root, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    for head_dim in TRITON_HEAD_DIMS:
        for name in ("decode_kernel bf16", "merge_kernel fp32", "prefill_kernel bf16"):
            assert f"{name} {head_dim} " in done.stdout
    # So a row has the same bits beside few neighbours as beside many, whose heads are packed.
    for packed in ("bf16 32 adds alike, 4", "bf16 64 adds alike, 2", "fp32 64 adds alike, 2"):
        assert f"decode_kernel {packed} heads or one" in done.stdout
    assert "hopper_decode_kernel bf16 64 adds alike, 2 heads or one" in done.stdout
    assert "hopper_decode_kernel bf16 128 " in done.stdout
    assert "merge_kernel fp32 64 adds alike, 4 heads or one" in done.stdout
