"""Who may import whom: the two processes meet only in `nanoserve`, the contract."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"nanoserve", "scheduler", "worker", "kernels", "deploy", "tests"}
HEAVY = {"llvmlite", "numba", "torch", "triton", "transformers", "safetensors"}

# For each part, what it may import of ours besides itself, and what of others it must not.
# A part's rule holds for the folder's files that no longer path has a rule for.
RULES: dict[str, tuple[set[str], set[str]]] = {
    "protos/nanoserve": (set(), HEAVY | {"numpy", "tokenizers", "jinja2"}),
    "scheduler": ({"nanoserve", "scheduler"}, HEAVY),
    "scheduler/core": (set(), HEAVY | {"grpc", "google", "tokenizers", "jinja2"}),
    "scheduler/api": ({"nanoserve", "scheduler.core"}, HEAVY),
    # Processes of front ends: they run the api, and know the engine by its interface, of which
    # log-probabilities are a part.
    "scheduler/fronts": (
        {"nanoserve", "scheduler.api", "scheduler.core.front_end", "scheduler.core.logprobs"},
        HEAVY,
    ),
    "scheduler/link": ({"nanoserve", "scheduler.core"}, HEAVY | {"tokenizers", "jinja2"}),
    "worker": ({"nanoserve", "kernels"}, {"transformers", "tokenizers", "jinja2"}),
    "kernels": (set(), {"transformers", "grpc", "google"}),
}


def imported_modules(source: str, package: str) -> Iterator[str]:
    """Full names of all that `source`, a module in `package`, imports, at any depth."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            # `from scheduler import core` imports scheduler.core.
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def violations(source: str, path: str) -> list[str]:
    """What the module at `path` (relative to the checkout) imports against its rule."""
    part = max((rule for rule in RULES if path.startswith(rule + "/")), key=len)
    allowed, forbidden = RULES[part]
    own = part.removeprefix("protos/").replace("/", ".")
    package = path.removeprefix("protos/").rpartition("/")[0].replace("/", ".")
    found = []
    for module in imported_modules(source, package):
        if module.split(".")[0] in OURS:
            if not any(is_within(module, name) for name in allowed | {own}):
                found.append(module)
        elif module.split(".")[0] in forbidden:
            found.append(module)
    return found


@pytest.mark.parametrize("part", ["protos/nanoserve", "scheduler", "worker", "kernels"])
def test_imports_run_one_way(part: str) -> None:
    paths = sorted((ROOT / part).rglob("*.py"))
    assert paths
    found = {
        name: bad
        for name in (str(path.relative_to(ROOT)) for path in paths)
        if (bad := violations((ROOT / name).read_text(), name))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("scheduler/core/x.py", "import scheduler.api.service", ["scheduler.api.service"]),
        ("scheduler/core/x.py", "from scheduler import link", ["scheduler.link"]),
        ("scheduler/core/x.py", "from ..link import wire", ["scheduler.link.wire"]),
        ("scheduler/core/x.py", "from .rows import Rows", []),
        ("scheduler/core/x.py", "import grpc", ["grpc"]),
        ("scheduler/api/x.py", "from scheduler.link import wire", ["scheduler.link.wire"]),
        ("scheduler/api/x.py", "from scheduler.core import request", []),
        ("scheduler/fronts/x.py", "from scheduler.core.front_end import Abort", []),
        ("scheduler/fronts/x.py", "import scheduler.core.engine", ["scheduler.core.engine"]),
        ("scheduler/__main__.py", "from scheduler.link import wire", []),
        ("scheduler/__main__.py", "def f():\n    import torch.cuda", ["torch.cuda"]),
        ("scheduler/__main__.py", "from worker import rows", ["worker.rows"]),
        ("worker/model/x.py", "from scheduler.core import rows", ["scheduler.core.rows"]),
        ("worker/model/x.py", "import kernels, worker.kv_pool, nanoserve.v1", []),
        ("kernels/x.py", "from worker import kv_pool", ["worker.kv_pool"]),
        ("protos/nanoserve/cli/x.py", "import numpy, nanoserve.client", ["numpy"]),
    ],
)
def test_a_forbidden_import_is_found(path: str, source: str, found: list[str]) -> None:
    assert violations(source, path) == found


def loaded_by(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after `statement`."""
    code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_scheduler_loads_no_torch_and_no_transformers() -> None:
    paths = (ROOT / "scheduler").rglob("*.py")
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    assert "scheduler.__main__" in names
    loaded = loaded_by("import " + ", ".join(names))
    assert {"scheduler", "nanoserve", "grpc", "tokenizers"} <= loaded
    # cryptography: only where there is a certificate.
    assert not loaded & (HEAVY | {"worker", "kernels", "cryptography"})


def test_the_client_and_its_command_load_nothing_but_grpc_and_protobuf() -> None:
    loaded = loaded_by("import nanoserve.cli.main")
    assert {"grpc", "google"} <= loaded
    others = {"cryptography", "numpy", "rich", "tokenizers", "jinja2", "scheduler", "worker"}
    assert not loaded & (HEAVY | others)


@pytest.mark.parametrize("module", ["scheduler.__main__", "worker.__main__"])
def test_a_server_loads_nothing_slow_before_its_signal_handlers(module: str) -> None:
    """As process 1 of a container it would not hear a signal until then."""
    loaded = loaded_by(f"import {module}")
    assert module.partition(".")[0] in loaded
    assert not loaded & (HEAVY | {"grpc", "google", "numpy", "nanoserve"})
