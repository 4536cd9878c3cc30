"""The deployment that these tests share: started once, in a Docker engine of its own."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.containers import effects, engine
from tests.end_to_end.containers.deployment import IMAGES, ROLLED, SIMULATED, Deployment, wait_until
from tests.end_to_end.containers.load import Load
from tests.end_to_end.containers.observer import Observer
from tests.end_to_end.containers.small_llama import write_small_llama
from tests.end_to_end.containers.stream import Stream

MODEL = "small-llama"
LONGEST = 900
USER = 10001  # of the images
_SIZES = "{{.Repository}}:{{.Tag}}: {{.Size}}"
_told: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            # With the build of the images, in the first.
            item.add_marker(pytest.mark.timeout(900))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [*_told, *effects.table()]
    if lines:
        terminalreporter.section("containers")
    for line in lines:
        terminalreporter.line(line)


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    _told.append(f"{what}: {time.monotonic() - began:.0f} s")


def _build(folder: Path) -> None:
    """All images. Raises NotHereError if there is nothing to build them of."""
    if not engine.docker("images", "-q", engine.BASE):
        with _timed("stand-in for the base image"):
            engine.script("base", engine.BASE)
    engine.check_that_packages_come(folder)
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(_build_scheduler), pool.submit(_build_worker, folder)]:
            done.result()
    if shutil.which("prometheus"):
        engine.build_prometheus(folder, IMAGES["PROMETHEUS_IMAGE"])
    for tag in (*IMAGES.values(), ROLLED, SIMULATED):
        _told.extend(engine.docker("images", "--format", _SIZES, tag).splitlines())


def _build_scheduler() -> None:
    with _timed("image of the scheduler"):
        engine.build("scheduler", "scheduler", IMAGES["SCHEDULER_IMAGE"])
    with _timed("image of the load tool"):
        engine.build("scheduler", "loadtest", IMAGES["LOADTEST_IMAGE"])


def _build_worker(folder: Path) -> None:
    with engine.index_of_torch(folder) as url:
        index = ("--build-arg", f"TORCH_INDEX_URL={url}")
        with _timed("image of the worker"):
            engine.build("worker", "worker", IMAGES["WORKER_IMAGE"], *index)
        engine.build("worker", "worker", ROLLED, *index, "--build-arg", "REVISION=rolled")
        with _timed("image that fetches models"):
            engine.build("worker", "model", IMAGES["MODEL_IMAGE"], *index)
    engine.build("worker", "worker", SIMULATED, "--build-arg", "DEVICE=simulated")


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An engine that has the images, cut off from every network."""
    if "TEST_CONTAINERS" not in os.environ:
        pytest.skip("run by make test-containers")
    try:
        engine.check_that_it_can_start()
        engine.script("up", "build")
        _build(tmp_path_factory.mktemp("build"))
        engine.script("up", "test")
        yield
    except engine.NotHereError as error:
        pytest.skip(str(error))
    finally:
        engine.end()


@pytest.fixture(scope="session")
def deployment(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """It serves a small random Llama."""
    models = tmp_path_factory.mktemp("models")
    write_small_llama(models / MODEL)
    for path in (models, models / MODEL, *(models / MODEL).iterdir()):
        os.chown(path, USER, USER)
    deployment = Deployment(models, MODEL)
    try:
        with _timed("from `up` until served"):
            deployment.start("scheduler")
        yield deployment
    finally:
        deployment.end()


@pytest.fixture(scope="session")
def secrets(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's folder of secrets."""
    folder = tmp_path_factory.mktemp("client")
    deployment.compose("cp", "init:/secrets/client/.", str(folder))
    return folder


@pytest.fixture(scope="session")
def right(secrets: Path) -> Callable[[int], list[int]]:
    """The first tokens of a stream, by their count: those of one that nothing disturbs."""
    undisturbed = Stream(secrets, LONGEST)
    tokens = undisturbed.rest()
    assert len(tokens) == LONGEST
    return lambda count: tokens[:count]


@pytest.fixture(scope="session")
def observer(deployment: Deployment) -> Observer:
    """Prometheus, which scrapes both servers."""
    if not shutil.which("prometheus"):
        pytest.skip("Prometheus is not installed (Debian's package prometheus)")
    deployment.start("prometheus", "--no-deps")
    observer = Observer()
    wait_until(lambda: observer.listens, "Prometheus listens")
    both = {"scheduler": 1.0, "worker": 1.0}
    wait_until(lambda: observer.values("up") == both, "both are scraped")
    return observer


@pytest.fixture(scope="session")
def load(deployment: Deployment, right: Callable[[int], list[int]]) -> Iterator[Load]:
    """Begins when nothing needs quiet any more."""
    load = Load(deployment)
    yield load
    load.remove()
