"""A port that several processes of one scheduler share, and nobody else."""

from __future__ import annotations

import contextlib
import socket

from scheduler.api.address import AddressError

_WILDCARDS = ("0.0.0.0", "::")


class SharedPort:
    """Holds a port for as long as it lives, without listening on it.

    It is bound before any front end is started and without SO_REUSEPORT, so that a port in
    use is refused; after that it shares with sockets of this user that ask for SO_REUSEPORT,
    as those of the front ends do. Another server of ours asks for it only once it owns the
    port itself, and so is refused for as long as this one lives.
    """

    def __init__(self, address: str) -> None:
        """`address` is HOST:PORT; port 0 takes a free one. Raises AddressError."""
        host, _, port = address.rpartition(":")
        self._sockets: list[socket.socket] = []
        self._port = int(port)
        try:
            for family, name in _resolve(host.removeprefix("[").removesuffix("]")):
                self._bind(family, name)
        except (OSError, UnicodeError) as error:  # the latter for a name that cannot be one
            self.close()
            raise AddressError(f"--listen {address}: cannot be bound: {error}") from error
        self.address = f"{host}:{self._port}"

    def close(self) -> None:
        for bound in self._sockets:
            bound.close()

    def _bind(self, family: socket.AddressFamily, name: str) -> None:
        sock = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(sock)
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(name not in _WILDCARDS))
        # Connections of a server that has ended may linger on the port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((name, self._port))
        # From here on a socket that asks for SO_REUSEADDR alone is refused.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._port = sock.getsockname()[1]


def _resolve(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """The addresses that gRPC would bind for `host`."""
    if host in _WILDCARDS:  # gRPC takes one socket for all addresses if there is IPv6
        return [(socket.AF_INET6, "::") if _has_address("::") else (socket.AF_INET, "0.0.0.0")]
    if host == "localhost":  # both to gRPC, whatever the hosts file says
        six = [(socket.AF_INET6, "::1")] if _has_address("::1") else []
        return [(socket.AF_INET, "127.0.0.1"), *six]
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((family, str(name[0])) for family, _, _, _, name in found))


def _has_address(name: str) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind((name, 0))
        return True
    return False
