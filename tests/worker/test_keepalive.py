"""Pings on a silent connection: the options that the library really obeys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import grpc

from scheduler.link.channel_options import CHANNEL_OPTIONS
from tests.waiting import SECONDS
from worker.server_options import SERVER_OPTIONS

Options = Sequence[tuple[str, int]]

PING_MS = 1_000
SILENCE_SECONDS = 7.0  # a server that minds closes the connection at the third ping
MIN_INTERVAL = "grpc.http2.min_ping_interval_without_data_ms"


def replaced(options: Options, **values: int) -> Options:
    """The options with some values replaced; a name that is not among them is an error."""
    names = {"keepalive_time_ms": "grpc.keepalive_time_ms", "min_interval_ms": MIN_INTERVAL}
    changes = {names[name]: value for name, value in values.items()}
    assert changes.keys() <= dict(options).keys()
    return [(name, changes.get(name, value)) for name, value in options]


def silent_call(server_options: Options, seconds: float) -> str:
    """How a stream ends on which neither side says a word for `seconds` while our channel pings."""
    over = Event()

    def silence(_request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        over.wait(seconds)
        return iter([b"done"])

    server = grpc.server(ThreadPoolExecutor(1), options=server_options)
    method = grpc.unary_stream_rpc_method_handler(silence)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Silence", {"Wait": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    options = replaced(CHANNEL_OPTIONS, keepalive_time_ms=PING_MS)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            return b"".join(channel.unary_stream("/test.Silence/Wait")(b"")).decode()
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    finally:
        over.set()
        server.stop(0).wait()


def test_our_server_options_let_a_silent_stream_live_and_default_ones_do_not() -> None:
    ours = replaced(SERVER_OPTIONS, min_interval_ms=PING_MS // 2)
    ignored = [
        (name.replace("min_ping_interval", "min_recv_ping_interval"), value) for name, value in ours
    ]
    with ThreadPoolExecutor(3) as pool:
        ends = list(pool.map(silent_call, [ours, [], ignored], [SILENCE_SECONDS, SECONDS, SECONDS]))
    assert ends[0] == "done"
    for end in ends[1:]:
        assert end.startswith("UNAVAILABLE: ")
        assert "oo many pings" in end or "ENHANCE_YOUR_CALM" in end


def test_the_worker_allows_pings_twice_as_often_as_the_link_sends_them() -> None:
    assert dict(CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] >= 2 * dict(SERVER_OPTIONS)[MIN_INTERVAL]


def test_both_ends_have_the_same_message_limit() -> None:
    for name in ("grpc.max_send_message_length", "grpc.max_receive_message_length"):
        assert dict(CHANNEL_OPTIONS)[name] == dict(SERVER_OPTIONS)[name]
