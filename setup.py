"""The one step of the build that pyproject.toml cannot say: compile the protos first."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).resolve().parent / "protos"))
from generate import generate  # found through the line above


class BuildWithStubs(build_py):
    def run(self) -> None:
        generate()
        super().run()


class SdistWithStubs(sdist):
    def run(self) -> None:
        generate()
        super().run()


setup(cmdclass={"build_py": BuildWithStubs, "sdist": SdistWithStubs})
