"""Certificates for tests: a CA of their own, and files in a folder. EC keys are made in no time."""

from __future__ import annotations

from pathlib import Path

from deploy.secrets.authority import CLIENT, SERVER, Authority, Pair
from nanoserve.tls import TlsFlags

HOSTS = ("localhost", "127.0.0.1")


class Certificates:
    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self.authority = Authority.create(name)
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(self.authority.pair.cert)

    def server(self, name: str = "server", days: float = 100.0, hosts=HOSTS) -> TlsFlags:
        """Its files, written anew if they are there."""
        return self._write(name, self.authority.issue(name, hosts, [SERVER], days))

    def client(self, name: str = "client", days: float = 100.0) -> TlsFlags:
        return self._write(name, self.authority.issue(name, (), [CLIENT], days))

    def both_ways(self, flags: TlsFlags, ca: Path | None = None) -> TlsFlags:
        """`flags` with the CA that the other side must be of."""
        return TlsFlags(flags.cert, flags.key, ("--ca", str(ca or self.ca)))

    def _write(self, name: str, pair: Pair) -> TlsFlags:
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}-key.pem"
        cert.write_bytes(pair.cert)
        key.write_bytes(pair.key)
        return TlsFlags(("--tls-cert", str(cert)), ("--tls-key", str(key)))


def flags_of(files: TlsFlags, prefix: str = "--") -> list[str]:
    """Of a command line."""
    return [f"{prefix}tls-cert={files.cert[1]}", f"{prefix}tls-key={files.key[1]}"]
