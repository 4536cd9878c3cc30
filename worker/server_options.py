"""The worker's gRPC server options, each with its reason."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 256 * 2**20

SERVER_OPTIONS: list[tuple[str, int]] = [
    # A second server on a used port must fail, not share its connections.
    ("grpc.so_reuseport", 0),
    # A step that brings back every row of a lost worker carries all their tokens; the default
    # of 4 MiB is about a million of them. Both ends set the same limit.
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # The scheduler's channels ping every 10 s, idle ones too. Without these two options the
    # third ping without data closes the connection as "too many pings". (The often quoted
    # min_recv_ping_interval_without_data_ms is a name that the library ignores.)
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Our own pings find a scheduler whose machine went away, so that its stream ends. Without
    # ping_timeout_ms the answer is awaited for 60 s, whatever keepalive_timeout_ms says.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
]
