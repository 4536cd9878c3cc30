"""The client's channel and the server's settings fit each other."""

from __future__ import annotations

from nanoserve.channel import DEFAULT_ADDRESS, channel_options
from scheduler.api.server import OPTIONS

CLIENT = dict(channel_options(DEFAULT_ADDRESS))
SERVER = dict(OPTIONS)


def test_the_client_pings_no_more_often_than_the_server_permits() -> None:
    permitted = SERVER["grpc.http2.min_ping_interval_without_data_ms"]
    assert CLIENT["grpc.keepalive_time_ms"] >= permitted


def test_the_client_takes_whatever_the_server_may_send() -> None:
    assert CLIENT["grpc.max_receive_message_length"] >= SERVER["grpc.max_send_message_length"]
