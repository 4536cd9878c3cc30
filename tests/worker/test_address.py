"""Where a worker may listen."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from worker.address import ListenAddress


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("127.0.0.1:50052", True),
        ("127.8.8.8:0", True),
        ("localhost:0", True),
        ("[::1]:0", True),
        ("unix:/tmp/worker.sock", True),
        ("0.0.0.0:50052", False),
        ("[::]:50052", False),
        ("10.0.0.1:50052", False),
        ("worker:50052", False),
    ],
)
def test_only_loopback_and_unix_addresses_are_local(text: str, local: bool) -> None:
    assert ListenAddress(text).is_local is local


@pytest.mark.parametrize("text", ["", "50052", ":50052", "host:", "host:x", "host:65536", "h:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT with port 0 to 65535, or unix:PATH"):
        ListenAddress(text)


def test_a_unix_address_needs_a_path() -> None:
    with pytest.raises(ValueError, match="has no path after unix:"):
        ListenAddress("unix:")


def test_the_bound_port_takes_the_place_of_0() -> None:
    assert ListenAddress("127.0.0.1:0").with_port(4711) == "127.0.0.1:4711"
    assert ListenAddress("[::1]:0").with_port(4711) == "[::1]:4711"
    assert ListenAddress("unix:/a/b").with_port(0) == "unix:/a/b"


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("keep")
    with pytest.raises(OSError, match="the file exists and is no socket"):
        ListenAddress(f"unix:{path}").check_free()
    assert path.read_text() == "keep"


def test_a_socket_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "socket"))
        text = f"unix:{tmp_path}/socket"
        with pytest.raises(OSError, match=f"cannot listen on {text}: Protocol wrong type"):
            ListenAddress(text).check_free()


def test_a_server_that_takes_no_more_connections_is_not_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with contextlib.ExitStack() as sockets:
        server = sockets.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(path)
        server.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = sockets.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(path)
        with pytest.raises(OSError, match="another process listens there"):
            ListenAddress(f"unix:{path}").check_free()
