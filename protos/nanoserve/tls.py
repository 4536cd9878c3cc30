"""Certificates of the servers, and of the scheduler towards its worker: read, checked, reloaded.

Clients need none of this (see access.py), nor the package `cryptography`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import grpc

from nanoserve.reloaded import FileError, Reloaded, read_bytes

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

log = logging.getLogger(__name__)

# The log tells of a certificate that ends within this, and tells again every day.
EXPIRY_WARNING = timedelta(days=14)
_TOLD_EVERY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TlsFlags:
    """The files, each by its flag and path. `ca` None: the other side needs no certificate."""

    cert: tuple[str, str]
    key: tuple[str, str]
    ca: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class TlsPems:
    """PEM of a certificate (with those that signed it, if any), of its key and of the CA that
    the other side's certificate must be signed by."""

    cert: bytes
    key: bytes
    ca: bytes | None
    expires: tuple[tuple[str, datetime], ...]  # flag with path, and the end of the first to end


TlsFiles = Reloaded[TlsPems]


def load(flags: TlsFlags) -> TlsFiles:
    """Raises FileError. Whoever owns it calls `watch(tell_expiry())`, and `close` at the end."""
    paths = [path for _, path in filter(None, (flags.cert, flags.key, flags.ca))]
    return Reloaded(paths, lambda: _read(flags))


def server_credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """What each new connection gets is current. With a CA, clients need its certificate."""
    served = tls.get()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before every handshake; None: nothing has changed."""
        nonlocal served
        pems = tls.get()
        if pems is served:
            return None
        served = pems
        return _configuration(pems)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served),
        fetch,  # type: ignore[arg-type]  # the stubs do not know of None
        require_client_authentication=served.ca is not None,
    )


def client_credentials(pems: TlsPems) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)


def tell_expiry() -> Callable[[TlsPems], None]:
    """To be called often: logs what ends soon, or has ended, once a day and after a change."""
    told: dict[tuple[str, datetime], datetime] = {}

    def tell(pems: TlsPems) -> None:
        now = datetime.now(UTC)
        for file, end in pems.expires:
            last = told.get((file, end))
            if end - now > EXPIRY_WARNING or (last and now - last < _TOLD_EVERY):
                continue
            told[file, end] = now
            if end > now:
                log.warning("%s: expires at %s; renew it", file, _text(end))
            else:
                log.error("%s: expired at %s; it is refused until renewed", file, _text(end))

    return tell


def _read(flags: TlsFlags) -> TlsPems:
    # Takes a tenth of a second, which a server without TLS does not pay.
    from cryptography.hazmat.primitives import serialization

    cert, key = read_bytes(*flags.cert), read_bytes(*flags.key)
    chain = _certificates(*flags.cert, cert)
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except TypeError:
        raise FileError(
            f"{_name(flags.key)}: has a passphrase; give a key without one, in a file that only "
            "the server may read"
        ) from None
    except Exception as error:
        raise FileError(f"{_name(flags.key)}: is no private key in PEM form") from error
    if private.public_key() != chain[0].public_key():
        raise FileError(
            f"{_name(flags.cert)}: is not the certificate of {_name(flags.key)}; give a pair "
            "that belongs together, the server's own certificate first"
        )
    expires = [(_name(flags.cert), _end(chain))]
    ca = None
    if flags.ca:
        ca = read_bytes(*flags.ca)
        expires.append((_name(flags.ca), _end(_certificates(*flags.ca, ca))))
    return TlsPems(cert, key, ca, tuple(expires))


def _certificates(flag: str, path: str, pem: bytes) -> list[Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise FileError(f"{flag} {path}: holds no certificate in PEM form") from None


def _configuration(pems: TlsPems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.ca)


def _end(certificates: list[Certificate]) -> datetime:
    return min(certificate.not_valid_after_utc for certificate in certificates)


def _name(file: tuple[str, str]) -> str:
    return " ".join(file)


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC")
