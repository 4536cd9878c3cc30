"""Who is let in to the deployment, and what its containers may do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.end_to_end.containers.deployment import (
    PROJECT,
    SCHEDULER,
    WORKER,
    Deployment,
    wait_until,
)
from tests.end_to_end.containers.engine import docker
from tests.end_to_end.containers.small_llama import greedy_tokens
from tests.end_to_end.containers.stream import PROMPT, Stream


def test_a_client_with_ca_and_token_gets_the_models_tokens_and_others_are_refused(
    deployment: Deployment, secrets: Path
) -> None:
    right = greedy_tokens(deployment.folder, PROMPT, 100)
    assert len(set(right)) > 10
    assert Stream(secrets, 100, temperature=0).rest() == right
    assert "UNAUTHENTICATED no token" in Stream(secrets, 10, token=False).error()
    assert Stream(None, 10).error().startswith("UNAVAILABLE")


def test_a_token_made_later_lets_its_holder_in_without_a_restart(
    deployment: Deployment, secrets: Path, tmp_path: Path
) -> None:
    shutil.copy(secrets / "ca.pem", tmp_path)
    hashes = ("--hashes", "/secrets/scheduler/token-hashes")
    token = deployment.compose("run", "--rm", "-T", "init", "token", "second", *hashes)
    (tmp_path / "token").write_text(token)

    def is_let_in() -> bool:
        return Stream(tmp_path, 1).ended() == 0

    wait_until(is_let_in, "the scheduler has read the file again")
    assert len(Stream(secrets, 10).rest()) == 10


def test_each_process_is_the_first_of_its_container_and_has_no_rights(
    deployment: Deployment,
) -> None:
    for container, package in ((WORKER, "worker"), (SCHEDULER, "scheduler")):
        process = Path("/proc", str(container.state["Pid"]))
        command = (process / "cmdline").read_text().split("\0")
        assert command[:3] == ["python", "-m", package]
        status = dict(
            line.split(":\t", 1) for line in (process / "status").read_text().splitlines()
        )
        assert status["Uid"].split() == ["10001"] * 4
        assert int(status["CapBnd"], 16) == 0
        assert status["NoNewPrivs"] == "1"
        with pytest.raises(RuntimeError, match="Read-only file system"):
            docker("exec", "-u", "0", container.name, "touch", "/app/file")


def test_the_worker_answers_only_the_scheduler_and_reaches_no_other_network(
    deployment: Deployment,
) -> None:
    networks = "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}} {{end}}"
    assert docker("inspect", "-f", networks, WORKER.name).split() == [f"{PROJECT}_link"]
    assert docker("network", "inspect", "-f", "{{.Internal}}", f"{PROJECT}_link").strip() == "true"
    assert docker("port", WORKER.name) == ""
    assert docker("port", SCHEDULER.name).split()[-1] == "127.0.0.1:50051"
    probe = "import os; os.environ.pop('NANOSERVE_TLS_CLIENT_CA'); from deploy.health import main"
    with pytest.raises(RuntimeError, match="UNAVAILABLE"):
        docker("exec", WORKER.name, "python", "-c", f"{probe}; raise SystemExit(main([]))")
