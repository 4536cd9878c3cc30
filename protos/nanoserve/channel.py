"""How the client's channels are set up: every option, with its reason."""

from __future__ import annotations

import ipaddress

DEFAULT_ADDRESS = "127.0.0.1:50051"

_OPTIONS: tuple[tuple[str, int], ...] = (
    # A dead connection is noticed within 40 s although a queued request may rightly
    # be silent for minutes. The server permits a ping every second. Without
    # ping_timeout_ms the answer to a ping is awaited for 60 s, whatever
    # keepalive_timeout_ms says.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # By default the library stops pinging after two pings without data: exactly
    # while a request waits in the queue.
    ("grpc.http2.max_pings_without_data", 0),
    # An idle channel needs no pings: the next call reconnects.
    ("grpc.keepalive_permit_without_calls", 0),
    # A restarted server is found within seconds; the default backs off to 2 minutes.
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Each client has a connection of its own, so that several of one process may be served
    # by several processes of the server. By default they would all share one.
    ("grpc.use_local_subchannel_pool", 1),
    # A prompt of any length goes out: the server names its own limit. A response
    # is as large as what piled up while the reader was slow.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)


def channel_options(address: str) -> list[tuple[str, int]]:
    """gRPC channel options for a server at `address` ("host:port" or "unix:PATH")."""
    options = list(_OPTIONS)
    if is_local(address):
        # http_proxy would otherwise catch calls to this very machine.
        options.append(("grpc.enable_http_proxy", 0))
    return options


def tls_options(address: str) -> list[tuple[str, str]]:
    """More of them with TLS. The host of a unix socket is this machine: gRPC would look for its
    path in the certificate."""
    return [("grpc.ssl_target_name_override", "localhost")] if address.startswith("unix:") else []


def is_local(address: str) -> bool:
    """Whether `address` is a unix socket or a loopback address."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
