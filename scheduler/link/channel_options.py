"""The options of the channels to a worker, each with its reason."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 256 * 2**20

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    # A step that brings back every row of a lost worker carries all their tokens; the default
    # of 4 MiB is about a million of them. Both ends set the same limit.
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A worker that hangs or whose machine went away closes no connection: a ping without an
    # answer ends the stream after 15 s. Idle channels ping too, since an idle scheduler must
    # know whether it is ready. The worker allows a ping every 5 s. (grpcio waits 60 s for the
    # answer whatever keepalive_timeout_ms says, unless ping_timeout_ms says less.)
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Channels of one process to one target share a connection unless told not to: a large
    # step would then hold up control, and a new channel would get the old one's backoff.
    ("grpc.use_local_subchannel_pool", 1),
    # A worker is near; a proxy that the environment names for the web is not for it.
    ("grpc.enable_http_proxy", 0),
    # The link retries by itself, with its own backoff and with steps that it knows.
    ("grpc.enable_retries", 0),
]
