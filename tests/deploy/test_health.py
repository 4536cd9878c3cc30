"""`python -m deploy.health`: what a probe of a container finds out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from deploy.health import dialled
from deploy.secrets.folder import SecretsFolder

ROOT = Path(__file__).resolve().parents[2]
LIVENESS = "nanoserve.liveness"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    SecretsFolder(folder, lambda _: None).make()
    return folder


@pytest.fixture
def server() -> Iterator[grpc.Server]:
    """Alive and not ready."""
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
    server = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    yield server
    server.stop(None).wait()


def probe(port: int, *flags: str, **variables: Path) -> tuple[int, str]:
    """Exit status and what it says."""
    names = {f"NANOSERVE_{name}": str(value) for name, value in variables.items()}
    done = subprocess.run(
        [sys.executable, "-m", "deploy.health", *flags],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "NANOSERVE_LISTEN": f"0.0.0.0:{port}", **names},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr.strip()


def test_readiness_and_liveness_are_told_apart(server: grpc.Server) -> None:
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    assert probe(port) == (1, f"127.0.0.1:{port}: NOT_SERVING")
    assert probe(port, "--service", LIVENESS) == (0, "")
    server.stop(None).wait()
    status, said = probe(port)
    assert status == 1
    assert said.startswith(f"127.0.0.1:{port}: UNAVAILABLE")


def test_a_worker_is_asked_with_its_own_certificate(server: grpc.Server, secrets: Path) -> None:
    own = secrets / "worker"
    cert, key, ca = own / "tls.pem", own / "tls-key.pem", own / "ca.pem"
    pair = [(key.read_bytes(), cert.read_bytes())]
    port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials(pair, ca.read_bytes(), True)
    )
    server.start()
    flags = ("--service", LIVENESS)
    files = {"TLS_CERT": cert, "TLS_KEY": key, "TLS_CLIENT_CA": ca}
    assert probe(port, *flags, **files) == (0, "")
    assert probe(port, *flags, TLS_CERT=cert, TLS_CA=ca)[0] == 1
    gone = {**files, "TLS_KEY": own / "gone.pem"}
    assert probe(port, *flags, **gone) == (1, f"{own}/gone.pem: No such file or directory")


def test_a_schedulers_certificate_must_be_of_the_ca_and_for_the_host(
    server: grpc.Server, secrets: Path
) -> None:
    own = secrets / "scheduler"
    cert, key = own / "tls.pem", own / "tls-key.pem"
    pair = [(key.read_bytes(), cert.read_bytes())]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
    server.start()
    flags = ("--service", LIVENESS)
    assert probe(port, *flags, TLS_CERT=cert, WORKER_TLS_CA=own / "ca.pem") == (0, "")
    assert probe(port, *flags, TLS_CERT=cert, TLS_CA=Path("system"))[0] == 1
    wrong = (*flags, "--host", "llm.example.org")
    assert probe(port, *wrong, TLS_CERT=cert, WORKER_TLS_CA=own / "ca.pem")[0] == 1


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("0.0.0.0:50051", "127.0.0.1:50051"),
        ("[::]:50051", "[::1]:50051"),
        ("10.0.0.7:50052", "10.0.0.7:50052"),
        ("unix:/run/worker.sock", "unix:/run/worker.sock"),
    ],
)
def test_a_server_is_dialled_where_it_listens(listen: str, address: str) -> None:
    assert dialled(listen) == address
