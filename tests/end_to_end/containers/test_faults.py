"""Faults of the worker under load: open streams pause, and go on with their tokens."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.end_to_end.containers import effects
from tests.end_to_end.containers.deployment import (
    LIVENESS,
    PROJECT,
    ROLLED,
    SCHEDULER,
    WORKER,
    Deployment,
    wait_until,
)
from tests.end_to_end.containers.engine import docker
from tests.end_to_end.containers.load import Load
from tests.end_to_end.containers.observer import Observer
from tests.end_to_end.containers.stream import Stream

Right = Callable[[int], list[int]]
COUNT = 500


def begun(secrets: Path, count: int = COUNT) -> Stream:
    stream = Stream(secrets, count)
    stream.read(20)
    return stream


def test_a_stream_goes_on_with_its_tokens_when_the_worker_is_killed(
    secrets: Path, right: Right, observer: Observer, load: Load
) -> None:
    """By kill -9 as the kernel does it: `docker kill` is a wish that it stays down."""
    before = WORKER.restarts
    stream = begun(secrets)
    os.kill(WORKER.state["Pid"], signal.SIGKILL)
    wait_until(lambda: WORKER.restarts == before + 1, "Docker starts it again")
    assert stream.is_open
    assert stream.rest() == right(COUNT)
    effects.record("worker killed (`kill -9`)", stream, COUNT)
    wait_until(lambda: WORKER.is_healthy, "the worker is healthy again")


def test_a_stream_goes_on_with_its_tokens_when_the_worker_stands_still(
    secrets: Path, right: Right, load: Load
) -> None:
    stream = begun(secrets)
    docker("pause", WORKER.name)
    try:
        wait_until(lambda: not SCHEDULER.answers(""), "the scheduler gives the worker up")
        assert SCHEDULER.answers(LIVENESS)
        assert stream.is_open
    finally:
        docker("unpause", WORKER.name)
    assert stream.rest() == right(COUNT)
    effects.record("worker paused, and resumed once it was given up", stream, COUNT)


def test_a_stream_goes_on_with_its_tokens_when_the_link_was_cut(
    secrets: Path, right: Right, load: Load
) -> None:
    stream = begun(secrets)
    link = f"{PROJECT}_link"
    docker("network", "disconnect", link, WORKER.name)
    try:
        wait_until(lambda: not SCHEDULER.answers(""), "the scheduler gives the worker up")
        assert stream.is_open
    finally:
        docker("network", "connect", "--alias", "worker", link, WORKER.name)
    assert stream.rest() == right(COUNT)
    effects.record("worker's network cut, and joined once it was given up", stream, COUNT)


def test_a_worker_is_rolled_to_another_image_under_load(
    deployment: Deployment, secrets: Path, right: Right, load: Load
) -> None:
    before = docker("inspect", "-f", "{{.Image}}", WORKER.name)
    stream = begun(secrets, 900)
    deployment.start("worker", "--no-deps", WORKER_IMAGE=ROLLED)
    assert docker("inspect", "-f", "{{.Image}}", WORKER.name) != before
    assert stream.rest() == right(900)
    effects.record("worker rolled to another image", stream, 900)
