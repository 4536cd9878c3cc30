"""The wheel: built from a checkout without stubs, it holds the client and nothing else."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from nanoserve.v1 import inference_pb2_grpc
from tests.protos.command import ROOT

BUILD_FILES = ["pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"]


def run(command: Sequence[str], cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), **variables},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without network from a copy of the sources, with folders of servers beside."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, checkout)
    shutil.copytree(
        ROOT / "protos",
        checkout / "protos",
        ignore=shutil.ignore_patterns("*_pb2*", "__pycache__", "*.egg-info"),
    )
    (checkout / "worker").mkdir()
    (checkout / "worker" / "__init__.py").touch()
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run([*pip, "--wheel-dir", "dist", "."], cwd=checkout)
    (built,) = (checkout / "dist").iterdir()
    return built


def test_it_is_pure_python(wheel: Path) -> None:
    assert re.fullmatch(r"nanoserve-[\d.]+-py3-none-any\.whl", wheel.name)


def test_it_holds_client_command_and_stubs_and_nothing_else(wheel: Path) -> None:
    sources = {
        str(path.relative_to(ROOT / "protos"))
        for path in (ROOT / "protos" / "nanoserve").rglob("*")
        if path.suffix in {".py", ".pyi", ".proto"} or path.name == "py.typed"
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == sources
    assert "nanoserve/v1/inference_pb2.py" in held
    assert "nanoserve/cli/main.py" in held


def test_it_needs_grpcio_and_protobuf_as_old_as_its_stubs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    needed = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert {re.split(r"[<>=]", need)[0] for need in needed} == {
        "grpcio",
        "protobuf",
        "googleapis-common-protos",
    }
    assert f"grpcio<2,>={inference_pb2_grpc.GRPC_GENERATED_VERSION}" in needed
    stub = (ROOT / "protos/nanoserve/v1/inference_pb2.py").read_text()
    made_by = re.search(r"Protobuf Python Version: ([\d.]+)", stub)
    assert made_by is not None
    assert f"protobuf<8,>={made_by.group(1)}" in needed


def test_installed_it_gives_the_command(wheel: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    run([*pip, "site", str(wheel)], cwd=tmp_path)
    command = [str(tmp_path / "site" / "bin" / "nanoserve")]
    site = {"PYTHONPATH": str(tmp_path / "site")}
    shown = run([*command, "--help"], cwd=tmp_path, **site)
    assert all(name in shown for name in ("generate", "chat", "status"))
    where = [sys.executable, "-c", "import nanoserve; print(nanoserve.__file__)"]
    assert run(where, cwd=tmp_path, **site).startswith(str(tmp_path / "site"))
    assert run([*command, "--version"], cwd=tmp_path, **site) == "nanoserve 0.1.0\n"
