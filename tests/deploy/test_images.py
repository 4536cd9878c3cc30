"""What the images install fits what pyproject.toml asks for."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

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
