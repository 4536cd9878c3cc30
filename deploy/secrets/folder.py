"""The folder of all secrets of a deployment, with one inside for each who has to know some.

ca/ signs, and no server needs it. scheduler/, worker/ and client/ are given to those whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from deploy.secrets.authority import (
    CLIENT,
    SERVER,
    Authority,
    Pair,
    days_left,
    hosts_of,
    is_pair,
    same_host,
)
from deploy.secrets.files import read_if_there, write_secret
from deploy.secrets.tokens import add_token

RENEW_DAYS = 30.0
# A server is also asked by its own machine: health checks, an operator.
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_AUTHORITY = "nanoserve CA"


@dataclass(frozen=True)
class _Wanted:
    """A certificate in `folder`; `hosts` none: of a client."""

    folder: str
    file: str  # FILE.pem, and FILE-key.pem
    name: str
    hosts: tuple[str, ...]
    purposes: tuple[x509.ObjectIdentifier, ...]


class SecretsFolder:
    """`tell` gets a line for everything that is written."""

    def __init__(self, root: Path, tell: Callable[[str], None]) -> None:
        self._root = root
        self._tell = tell

    def make(
        self, hosts: Sequence[str] = (), worker_hosts: Sequence[str] = (), *, renew: bool = False
    ) -> None:
        """Makes what is not there, and certificates anew that are for other hosts or of another
        CA; with `renew` those too that end within RENEW_DAYS. `hosts` and `worker_hosts`: names
        and addresses that clients and the scheduler dial. Raises ValueError and OSError."""
        authority = self._authority(renew)
        # Before what it signs: both sides then know a new CA when they meet its certificates.
        bundle = read_if_there(self._root / "ca" / "ca.pem") or b""
        for folder in ("scheduler", "worker", "client"):
            if read_if_there(self._root / folder / "ca.pem") != bundle:
                self._write(f"{folder}/ca.pem", bundle)
        for wanted in (
            _Wanted("scheduler", "tls", "nanoserve scheduler", _sorted(hosts), (SERVER,)),
            _Wanted("scheduler", "worker-tls", "nanoserve scheduler", (), (CLIENT,)),
            # The worker's own health check asks as a client, with this very certificate.
            _Wanted("worker", "tls", "nanoserve worker", _sorted(worker_hosts), (SERVER, CLIENT)),
        ):
            self._certificate(authority, bundle, wanted, renew)
        self._token()

    def _authority(self, renew: bool) -> Authority:
        cert = read_if_there(self._root / "ca" / "ca.pem")
        key = read_if_there(self._root / "ca" / "ca-key.pem")
        if cert is None:
            return self._new_authority(b"")
        if key is None:
            raise ValueError(f"{self._root}/ca/ca.pem: ca-key.pem is missing beside it")
        try:
            authority = Authority(Pair(cert, key))
        except ValueError as error:
            raise ValueError(f"{self._root}/ca: {error}") from None
        if days_left(cert) >= RENEW_DAYS:
            return authority
        if not renew:
            self._tell(f"ca/ca.pem ends in {days_left(cert):.0f} days: say --renew")
            return authority
        return self._new_authority(cert)

    def _new_authority(self, before: bytes) -> Authority:
        """Whoever trusts it trusts the one `before` too: certificates change one by one."""
        authority = Authority.create(_AUTHORITY)
        # Without the certificate nobody takes the key for one in use.
        self._write("ca/ca-key.pem", authority.pair.key)
        self._write("ca/ca.pem", authority.pair.cert + before)
        return authority

    def _certificate(
        self, authority: Authority, bundle: bytes, wanted: _Wanted, renew: bool
    ) -> None:
        cert_name = f"{wanted.folder}/{wanted.file}.pem"
        key_name = f"{wanted.folder}/{wanted.file}-key.pem"
        cert, key = (read_if_there(self._root / name) for name in (cert_name, key_name))
        is_right = cert and key and is_pair(Pair(cert, key), bundle)
        if is_right and hosts_of(cert) == frozenset(wanted.hosts):
            if days_left(cert) >= RENEW_DAYS:
                return
            if not renew:
                self._tell(f"{cert_name} ends in {days_left(cert):.0f} days: say --renew")
                return
        pair = authority.issue(wanted.name, wanted.hosts, wanted.purposes)
        self._write(key_name, pair.key)
        self._write(cert_name, pair.cert)

    def _token(self) -> None:
        """One, whose hash the scheduler has and which clients find in client/token."""
        hashes, plain = self._root / "scheduler" / "token-hashes", self._root / "client" / "token"
        if read_if_there(hashes):
            return
        known = (read_if_there(plain) or b"").decode().strip()
        token = add_token(hashes, "first", token=known)
        self._tell("scheduler/token-hashes")
        if not known:
            self._write("client/token", f"{token}\n".encode())

    def _write(self, name: str, content: bytes) -> None:
        write_secret(self._root / name, content)
        self._tell(name)


def _sorted(hosts: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({same_host(host) for host in (*hosts, *LOCAL_HOSTS)}))
