"""`python3 deploy/install.py VENV`: makes a virtual environment with all that the
checkout needs. Standard library only, and readable by older Pythons, which it refuses.
"""

import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

MINIMUM = (3, 11)
ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "scheduler,otel,worker,model,loadtest,top,dev"

COST = """\
Installing into {venv}: PyTorch, transformers, gRPC and tools.
  On Linux x86-64 pip's default build of PyTorch brings CUDA: several GB to download and
  on disk, so expect many minutes on a slow line. A CPU build, if pip is configured to
  find one, is about 0.2 GB, and all the rest 0.5 GB. Free on this disk: {free:.0f} GB.
  This is done once; an interrupted install goes on where pip's cache ends."""


def main() -> None:
    venv = Path(sys.argv[1])
    if sys.version_info < MINIMUM:
        sys.exit(
            "nanoserve needs Python {}.{} or newer, {} is {}.{}: set PYTHON=, for example "
            "`make install PYTHON=python3.12`".format(
                *MINIMUM, sys.executable, *sys.version_info[:2]
            )
        )
    if not (venv / "bin" / "python").exists():
        create(venv)
    if not has_torch(venv):
        print(COST.format(venv=venv, free=shutil.disk_usage(ROOT).free / 1e9), flush=True)
    start = time.monotonic()
    # Without isolation the build uses the tools of the venv instead of fetching them
    # into a second one.
    pip(venv, *build_requirements())
    pip(venv, "--no-build-isolation", "--editable", f"{ROOT}[{EXTRAS}]")
    add_command(venv, "nanoserve-loadtest", "deploy.loadtest")
    print(f"installed in {time.monotonic() - start:.0f} s", flush=True)


def create(venv: Path) -> None:
    try:
        import ensurepip  # noqa: F401  (Debian packages it apart)
        import venv as module
    except ImportError:
        version = "{}.{}".format(*sys.version_info[:2])
        sys.exit(
            f"{sys.executable} cannot make virtual environments: install its venv module "
            f"(on Debian and Ubuntu: apt install python{version}-venv)"
        )
    module.create(venv, with_pip=True)


def add_command(venv: Path, name: str, module: str) -> None:
    """A command for what is not packaged: it runs from the checkout."""
    paths = shlex.quote(f"{ROOT}:{ROOT / 'protos'}")
    python = shlex.quote(str((venv / "bin" / "python").absolute()))
    command = venv / "bin" / name
    command.write_text(
        f'#!/bin/sh\nPYTHONPATH={paths}:$PYTHONPATH exec {python} -m {module} "$@"\n'
    )
    command.chmod(0o755)


def has_torch(venv: Path) -> bool:
    return any(venv.glob("lib/python*/site-packages/torch/version.py"))


def build_requirements() -> list[str]:
    import tomllib  # from Python 3.11, hence after the check

    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return [str(requirement) for requirement in requirements]


def pip(venv: Path, *arguments: str) -> None:
    # Python compiles what is imported; compiling all of it takes a minute here.
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--no-compile", *arguments]
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        sys.exit(f"pip failed (exit status {status}); its message is above")


if __name__ == "__main__":
    main()
