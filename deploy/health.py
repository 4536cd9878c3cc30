"""`python -m deploy.health`: asks the server in this container for its health; for probes.

Ends with 0 if it is SERVING, else with 1 and a line that says why. The address and the
certificates are those that the server itself takes from its NANOSERVE_* variables.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def dialled(listen: str) -> str:
    """Where a server that listens on `listen` is found from its own machine."""
    if listen.startswith("unix:"):
        return listen
    host, _, port = listen.rpartition(":")
    return f"{_ANY.get(host, host)}:{port}"


def credentials(environment: Mapping[str, str]) -> grpc.ChannelCredentials | None:
    """None: the server has no TLS. Raises OSError for a file that cannot be read.

    A worker wants a certificate of its CA, and its own is one. A scheduler's is signed by
    NANOSERVE_TLS_CA ("system": a public one), or else by the CA of its worker.
    """
    cert = environment.get("NANOSERVE_TLS_CERT")
    if not cert:
        return None
    if client_ca := environment.get("NANOSERVE_TLS_CLIENT_CA"):
        key = Path(environment.get("NANOSERVE_TLS_KEY", "")).read_bytes()
        return grpc.ssl_channel_credentials(
            Path(client_ca).read_bytes(), key, Path(cert).read_bytes()
        )
    ca = environment.get("NANOSERVE_TLS_CA") or environment.get("NANOSERVE_WORKER_TLS_CA")
    roots = Path(ca).read_bytes() if ca and ca != "system" else None
    return grpc.ssl_channel_credentials(roots)


def complaint(environment: Mapping[str, str], service: str, host: str, timeout: float) -> str:
    """Why the server is not healthy; empty if it is. `host`: whom its certificate is for."""
    listen = environment.get("NANOSERVE_LISTEN")
    if not listen:
        return "NANOSERVE_LISTEN is not set: it says where the server listens"
    try:
        tls = credentials(environment)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    options = [("grpc.enable_http_proxy", 0), ("grpc.ssl_target_name_override", host)]
    address = dialled(listen)
    if tls is None:
        channel = grpc.insecure_channel(address, options=options[:1])
    else:
        channel = grpc.secure_channel(address, tls, options=options)
    with channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout)
        except grpc.RpcError as error:
            return f"{address}: {error.code().name}: {error.details()}"
    if answer.status == SERVING:
        return ""
    return f"{address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.health", description=__doc__)
    parser.add_argument("--service", default="", help="default: the server's readiness")
    parser.add_argument(
        "--host", default="localhost", help="whom its certificate is for; default: %(default)s"
    )
    parser.add_argument("--timeout", type=float, default=4.0, help="seconds; default: %(default)g")
    given = parser.parse_args(arguments)
    wrong = complaint(os.environ, given.service, given.host, given.timeout)
    if wrong:
        print(wrong, file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
