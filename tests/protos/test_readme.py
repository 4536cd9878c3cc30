"""The README's Python snippets run as they stand, but for the server's address."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2

from tests.protos.command import ROOT, environment
from tests.protos.scripted_server import ScriptedServer, fail
from tests.waiting import SECONDS

ADDRESS = "127.0.0.1:50051"
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def output_of(snippet: str, server: ScriptedServer, folder: Path) -> str:
    assert ADDRESS in snippet
    script = folder / "snippet.py"
    script.write_text(snippet.replace(ADDRESS, server.address))
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("index", "printed"),
    [
        (0, "Hello worldHello world FinishReason.STOP Usage(prompt_tokens=5,"),
        (1, "Hello world\nHello world\n"),
    ],
)
def test_the_snippets_run(server: ScriptedServer, tmp_path: Path, index: int, printed: str) -> None:
    assert output_of(SNIPPETS[index], server, tmp_path).startswith(printed)


def test_the_snippet_on_errors_runs(server: ScriptedServer, tmp_path: Path) -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="seed")
    server.handler = fail(
        grpc.StatusCode.INVALID_ARGUMENT,
        "seed: -1",
        error_details_pb2.BadRequest(field_violations=[violation]),
    )
    assert output_of(SNIPPETS[2], server, tmp_path) == "INVALID_ARGUMENT: seed: -1 ['seed']\n"


def test_no_snippet_is_left_out() -> None:
    assert len(SNIPPETS) == 3


def test_every_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert {"run", "test", "serve"} <= named <= targets
