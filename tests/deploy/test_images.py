"""The images have what their code imports, in versions that pyproject.toml asks for."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.test_imports import OURS, imported_modules

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDER = ROOT / "deploy/docker/requirements"
IMAGES = {
    "scheduler": ("scheduler",),
    "worker": ("worker", "torch-cuda"),
    "loadtest": ("scheduler", "loadtest"),
    "model": ("worker", "torch-cpu", "model"),
    "top": ("scheduler",),
}


def pins(*files: str) -> dict[str, Version]:
    found = {}
    for file in files:
        for line in (FOLDER / f"{file}.txt").read_text().splitlines():
            if not line.startswith("#"):
                name, version = line.split("==")
                found[name.lower().replace("_", "-")] = Version(version)
    return found


@pytest.mark.parametrize("extra", IMAGES)
def test_every_package_is_pinned_to_a_version_that_fits(extra: str) -> None:
    pinned = pins(*IMAGES[extra])
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]
    for requirement in map(Requirement, asked):
        assert pinned[requirement.name.lower().replace("_", "-")] in requirement.specifier


def test_torch_is_the_same_everywhere() -> None:
    assert pins("torch-cpu")["torch"] == pins("torch-cuda")["torch"]


def test_what_is_only_constrained_has_the_version_that_other_images_pin() -> None:
    constrained = pins("constraints")
    for file in ("scheduler", "worker", "loadtest", "model", "torch-cuda"):
        pinned = pins(file)
        shared = constrained.keys() & pinned.keys()
        assert {name: constrained[name] for name in shared} == {n: pinned[n] for n in shared}, file


def test_pip_chooses_no_version_itself() -> None:
    for server, count in (("scheduler", 2), ("worker", 3)):
        text = (ROOT / f"deploy/docker/{server}.Dockerfile").read_text().replace("\\\n", " ")
        installs = re.findall(r"pip --python /opt/venv install (.*?)(?:&&|;;|\n)", text)
        assert len(installs) == count
        for options in installs:
            assert "--no-deps" in options or "constraints.txt" in options


def copied(dockerfile: str) -> set[Path]:
    """Our Python files in the images that it makes, all targets together."""
    text = (ROOT / "deploy/docker" / dockerfile).read_text().replace("\\\n", " ")
    files: set[Path] = set()
    for line in re.findall(r"^COPY ((?:deploy|kernels|protos|scheduler|worker)/.*)$", text, re.M):
        for source in line.split()[:-1]:
            path = ROOT / source
            files |= set(path.rglob("*.py")) if path.is_dir() else {path}
    return {file for file in files if file.suffix == ".py"}


def files_of(module: str) -> list[Path]:
    """The file of a module of ours, or of its package; none for a name within one."""
    path = ROOT / ("protos" if module.startswith("nanoserve") else "") / module.replace(".", "/")
    found = (path.with_suffix(".py"), path / "__init__.py")
    return [file for file in found if file.exists()]


@pytest.mark.parametrize("dockerfile", ["scheduler.Dockerfile", "worker.Dockerfile"])
def test_an_image_has_every_file_of_ours_that_its_code_imports(dockerfile: str) -> None:
    files = copied(dockerfile)
    lacking = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in files
        for module in imported_modules(
            path.read_text(), path.relative_to(ROOT).parent.as_posix().replace("/", ".")
        )
        if module.split(".")[0] in OURS and not files.issuperset(files_of(module))
    }
    assert len(files) > 50
    assert lacking == set()


@pytest.mark.parametrize("dockerfile", ["scheduler.Dockerfile", "worker.Dockerfile"])
def test_a_health_check_is_a_command_that_is_in_the_image(dockerfile: str) -> None:
    text = (ROOT / "deploy/docker" / dockerfile).read_text().replace("\\\n", " ")
    (check,) = re.findall(r"^HEALTHCHECK --.*CMD (\[.*\])$", text, re.M)
    python, flag, module = json.loads(check)[:3]
    assert (python, flag) == ("python", "-m")
    assert set(files_of(module)) & copied(dockerfile)


def test_a_worker_is_given_the_time_to_load_that_the_operators_page_tells() -> None:
    text = (ROOT / "deploy/docker/worker.Dockerfile").read_text()
    (seconds,) = re.findall(r"--start-period=(\d+)s", text)
    told = f"The worker answers once its model is loaded; {seconds} s are granted for that."
    assert told in " ".join((ROOT / "deploy/README.md").read_text().split())
    assert int(seconds) >= 300
