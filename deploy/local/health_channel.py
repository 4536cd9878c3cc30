"""A channel to the scheduler that we have started, for its health."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import grpc

_OPTIONS: list[tuple[str, int | str]] = [
    # A proxy that the environment names is not for this machine.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_reconnect_backoff_ms", 200),
]


def health_channel(address: str, scheduler_args: Sequence[str]) -> grpc.Channel:
    """With TLS if the scheduler's flags have a certificate, which is taken for its own CA and for
    whatever host it names: we know whom we have started."""
    path = _certificate(scheduler_args)
    if path is None or not path.is_file():  # of which the scheduler will tell, and end
        return grpc.insecure_channel(address, options=_OPTIONS)
    # Not before it is needed: it is not small.
    from deploy.secrets.authority import hosts_of

    pem = path.read_bytes()
    host = ("grpc.ssl_target_name_override", min(hosts_of(pem), default="localhost"))
    credentials = grpc.ssl_channel_credentials(pem)
    return grpc.secure_channel(address, credentials, options=[*_OPTIONS, host])


def _certificate(flags: Sequence[str]) -> Path | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--tls-cert", type=Path)
    found: Path | None = parser.parse_known_args(flags)[0].tls_cert
    return found
