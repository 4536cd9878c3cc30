"""The Makefile: what `make help` lists, and how typed text reaches the command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.install import add_command

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_is_the_default_and_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    shown = make()
    assert shown.returncode == 0
    listed = [line.split()[0] for line in shown.stdout.splitlines() if line.startswith("  ")]
    assert listed == phony.group(1).split()
    assert make("help").stdout == shown.stdout
    for line in shown.stdout.splitlines():
        assert len(line) <= 100


def test_a_prompt_reaches_the_command_as_typed(tmp_path: Path) -> None:
    """Dollars, quotes and backticks included."""
    prompt = """It's $5 or $(HOME) `id` "quoted" \\n #1"""
    probe = tmp_path / "probe.mk"
    probe.write_text(f'include {ROOT / "Makefile"}\nshow:\n\t@printf %s "$$NANOSERVE_PROMPT"\n')
    # Make reads its own variables in command-line values with a dollar; $(value) does not.
    assert make("-f", str(probe), "show", f"PROMPT={prompt}").stdout == prompt


@pytest.mark.parametrize("target", ["install", "run"])
def test_an_old_python_is_refused_with_what_to_do(tmp_path: Path, target: str) -> None:
    old = tmp_path / "python3"
    old.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'import sys, runpy; sys.version_info = (3, 9, 1);"
        ' sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__")\' "$@"\n'
    )
    old.chmod(0o755)
    venv = tmp_path / "venv"
    done = make(target, f"PYTHON={old}", f"VENV={venv}")
    assert done.returncode != 0
    assert "nanoserve needs Python 3.11 or newer" in done.stderr
    assert "make install PYTHON=" in done.stderr
    assert not venv.exists()


def test_the_load_tools_command_runs_from_anywhere(tmp_path: Path) -> None:
    """As the installation writes it, beside the Python that it is for."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    add_command(tmp_path, "nanoserve-loadtest", "deploy.loadtest")
    command = [str(tmp_path / "bin" / "nanoserve-loadtest"), "run", "--help"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert "--concurrency" in shown.stdout
