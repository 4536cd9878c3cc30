"""One owner for a port, whose processes share it."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from scheduler.api.address import AddressError
from scheduler.fronts import shared_port
from scheduler.fronts.shared_port import SharedPort


def serves(address: str, share: bool, servers: list[grpc.Server]) -> bool:
    server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", int(share))])
    try:
        server.add_insecure_port(address)
    except RuntimeError:
        return False
    server.start()
    servers.append(server)
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::]"])
def test_its_own_share_it_and_nobody_else_gets_it(host: str) -> None:
    if ":" in host and not shared_port._has_address("::1"):
        pytest.skip("no IPv6 here")
    servers: list[grpc.Server] = []
    port = SharedPort(f"{host}:0")
    number = port.address.rpartition(":")[2]
    assert number != "0"
    for before in range(3):  # of ours, that listen already
        for other in (host, "0.0.0.0"):
            with pytest.raises(AddressError, match=f"{re.escape(other)}:{number}: cannot be bound"):
                SharedPort(f"{other}:{number}")
        assert not serves(port.address, False, servers)
        assert len(servers) == before
        assert serves(port.address, True, servers)
    for server in servers:
        server.stop(0).wait()
    port.close()
    SharedPort(f"{host}:{number}").close()


def test_a_port_that_a_server_listens_on_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        with pytest.raises(AddressError, match=f"--listen 127.0.0.1:{number}: cannot be bound"):
            SharedPort(f"127.0.0.1:{number}")


def test_a_port_with_lingering_connections_of_a_server_that_ended_is_taken() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    number = server.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", number))
    peer, _ = server.accept()
    peer.close()  # first, so that the server's end lingers
    assert client.recv(1) == b""
    client.close()
    server.close()
    SharedPort(f"127.0.0.1:{number}").close()


@pytest.mark.parametrize("address", ["nowhere.invalid:0", "a..b:0"])
def test_a_host_that_is_not_known_or_no_name_is_refused(address: str) -> None:
    with pytest.raises(AddressError, match=f"--listen {re.escape(address)}: cannot be bound: "):
        SharedPort(address)
