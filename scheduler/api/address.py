"""Where a server listens."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat


class AddressError(Exception):
    """An address that cannot be used; the message says what to do."""


def check_address(
    flag: str, address: str, unprotected: str = "", forms: str = "HOST:PORT or unix:PATH"
) -> None:
    """Refuses what is not HOST:PORT or unix:PATH, and a host that others can reach if there is
    something `unprotected`, words that say what, and what to do. `forms` are those to name."""
    if address.startswith("unix:"):
        if not _unix_path(address):
            raise AddressError(f"{flag} {address}: has no path; give unix:PATH")
        return
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        named = forms.replace("PORT", "PORT (port 0 to 65535)")
        raise AddressError(f"{flag} {address}: give {named}")
    if unprotected and not _is_loopback(host):
        raise AddressError(f"{flag} {address}: others can reach it, {unprotected}")


def clear_unix_path(address: str) -> None:
    """Removes the socket that a killed server left behind; refuses a path in use, which
    gRPC would take away from the server that has it."""
    path = _unix_path(address) if address.startswith("unix:") else ""
    if not path or not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise AddressError(f"{address}: the path exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # whoever listens there takes no more connections
        except OSError as error:
            why = error.strerror
            raise AddressError(f"{address}: the socket there cannot be tried: {why}") from error
    raise AddressError(f"{address}: another server listens there")


def _unix_path(address: str) -> str:
    """gRPC takes unix:relative, unix:/absolute and unix:///absolute."""
    path = address.removeprefix("unix:")
    return path.removeprefix("//") if path.startswith("//") else path


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
