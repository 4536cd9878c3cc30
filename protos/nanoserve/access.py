"""How a client reaches a server: its address, its CA, and the token that lets one in."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import grpc
import grpc.aio

from nanoserve.channel import DEFAULT_ADDRESS, channel_options, is_local, tls_options

# Instead of a file: the certificate authorities that gRPC brings, for a public certificate.
SYSTEM_CA = "system"
ADDRESS, CA = "NANOSERVE_ADDRESS", "NANOSERVE_TLS_CA"
TOKEN, TOKEN_FILE = "NANOSERVE_TOKEN", "NANOSERVE_TOKEN_FILE"
# What gRPC takes besides HOST:PORT. A host without a port would be dialled at 443.
_SCHEMES = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:")
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_PEM = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True)
class Access:
    """`address` is "host:port" or "unix:PATH". With `tls_ca`, a file of PEM certificates or
    "system", the channel is encrypted, and the server's certificate must be signed by one of
    them and be for the host of the address. `token` goes with every call.

    Raises ValueError for an address of another form, for a file that cannot be used, and for a
    token that would go over the network unencrypted.
    """

    address: str = DEFAULT_ADDRESS
    tls_ca: str | os.PathLike[str] | None = None
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _is_address(self.address):
            raise ValueError(f"address {self.address!r}: give HOST:PORT or unix:PATH")
        if self.token is not None and not _is_sendable(self.token):
            raise ValueError("the token is empty or has characters other than visible ASCII")
        if self.token is not None and self.tls_ca is None and not is_local(self.address):
            raise ValueError(
                f"the token is not sent to {self.address} unencrypted: give the server's CA "
                f"(tls_ca, --tls-ca or {CA})"
            )
        self.roots  # noqa: B018  (read here, so that a wrong file is told of at once)

    @property
    def is_encrypted(self) -> bool:
        return self.tls_ca is not None

    @cached_property
    def roots(self) -> bytes | None:
        """PEM of `tls_ca`; None: those of gRPC, or no encryption."""
        if self.tls_ca is None or self.tls_ca == SYSTEM_CA:
            return None
        try:
            with open(self.tls_ca, "rb") as file:
                pem = file.read()
        except OSError as error:
            raise ValueError(f"CA file {self.tls_ca}: cannot be read: {error.strerror}") from None
        if _PEM not in pem:
            raise ValueError(f"CA file {self.tls_ca}: holds no certificate in PEM form")
        return pem

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Of every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token is not None else ()

    def channel(self) -> grpc.Channel:
        options = channel_options(self.address)
        if not self.is_encrypted:
            return grpc.insecure_channel(self.address, options)
        credentials = grpc.ssl_channel_credentials(self.roots)
        return grpc.secure_channel(
            self.address, credentials, [*options, *tls_options(self.address)]
        )

    def aio_channel(self) -> grpc.aio.Channel:
        options = channel_options(self.address)
        if not self.is_encrypted:
            return grpc.aio.insecure_channel(self.address, options)
        credentials = grpc.ssl_channel_credentials(self.roots)
        return grpc.aio.secure_channel(
            self.address, credentials, [*options, *tls_options(self.address)]
        )


def access_from(
    environment: Mapping[str, str],
    address: str | None = None,
    tls_ca: str | None = None,
    token_file: str | None = None,
) -> Access:
    """What is given here beats the environment: NANOSERVE_ADDRESS, NANOSERVE_TLS_CA, and
    NANOSERVE_TOKEN or else NANOSERVE_TOKEN_FILE. Raises ValueError."""
    token = None if token_file else environment.get(TOKEN, "").strip()
    if not token and (file := token_file or environment.get(TOKEN_FILE)):
        token = _read_token(file)
    return Access(
        address or environment.get(ADDRESS) or DEFAULT_ADDRESS,
        tls_ca or environment.get(CA) or None,
        token or None,
    )


def _read_token(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except OSError as error:
        raise ValueError(f"token file {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        token = ""
    if not _is_sendable(token):
        raise ValueError(f"token file {path}: must hold one token and nothing else")
    return token


def _is_address(text: str) -> bool:
    if text.startswith(_SCHEMES):
        return True
    match = _HOST_AND_PORT.fullmatch(text)
    return match is not None and 0 < int(match[2]) < 2**16


def _is_sendable(token: str) -> bool:
    return token.isascii() and token.isprintable() and " " not in token and token != ""
