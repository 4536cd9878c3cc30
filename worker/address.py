"""Where the worker listens."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass

UNIX_PREFIX = "unix:"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """HOST:PORT, [IPV6]:PORT or unix:PATH; port 0 takes a free one. Raises ValueError."""

    text: str

    def __post_init__(self) -> None:
        if self.is_unix:
            if not self.path:
                raise ValueError(f"listen address {self.text!r} has no path after {UNIX_PREFIX}")
            return
        host, colon, port = self.text.rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) < 2**16):
            raise ValueError(
                f"listen address {self.text!r} must be HOST:PORT with port 0 to 65535, or unix:PATH"
            )

    @property
    def is_unix(self) -> bool:
        return self.text.startswith(UNIX_PREFIX)

    @property
    def path(self) -> str:
        return self.text.removeprefix(UNIX_PREFIX)

    @property
    def host(self) -> str:
        return self.text.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.text.rpartition(":")[2])

    @property
    def family(self) -> socket.AddressFamily:
        """Of HOST:PORT."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.is_unix or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def with_port(self, port: int) -> str:
        return self.text if self.is_unix else f"{self.text.rpartition(':')[0]}:{port}"

    def check_free(self) -> None:
        """Raises OSError if another process listens here, and removes the socket file that a
        dead one left. Asked before a long load, and before gRPC, which would take over a live
        unix socket without a word."""
        if self.is_unix:
            self._check_path_free()
        elif self.port:
            with socket.socket(self.family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self.host, self.port))
                except OSError as error:
                    raise OSError(f"cannot listen on {self.text}: {error.strerror}") from error

    def _check_path_free(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
            raise OSError(f"cannot listen on {self.text}: the file exists and is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(self.path)
            except ConnectionRefusedError:
                os.unlink(self.path)
                return
            except BlockingIOError:
                pass  # whoever listens there takes no more connections
            except OSError as error:
                raise OSError(f"cannot listen on {self.text}: {error.strerror}") from error
        raise OSError(f"cannot listen on {self.text}: another process listens there")


def metrics_address(text: str) -> ListenAddress | None:
    """The address of --metrics-listen; None if it is off. Raises ValueError."""
    if text == "off":
        return None
    with contextlib.suppress(ValueError):
        address = ListenAddress(text)
        if not address.is_unix:
            return address
    raise ValueError(f"--metrics-listen {text!r} must be HOST:PORT with port 0 to 65535, or off")
