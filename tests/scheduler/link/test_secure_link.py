"""Mutual TLS between scheduler and worker, and what the link's log says where it fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nanoserve import tls
from scheduler.core.worker_link import Connected, Disconnected
from scheduler.link.link import GrpcWorkerLink
from tests.certificates import Certificates
from tests.scheduler.link.test_link import Inbox
from tests.waiting import wait_for
from tests.worker.running_worker import RunningWorker, running_worker

CLOSED = "the server closes connections before a call"


@pytest.fixture
def ours(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path, "ours")


@contextmanager
def secure_worker(files: tls.TlsFlags, address="127.0.0.1:0") -> Iterator[RunningWorker]:
    with running_worker(files=tls.load(files), address=address) as worker:
        yield worker


@contextmanager
def linked(address: str, files: tls.TlsFlags | None) -> Iterator[Inbox]:
    loaded = tls.load(files) if files else None
    link, inbox = GrpcWorkerLink(address, files=loaded), Inbox()
    link.start(inbox)
    try:
        yield inbox
    finally:
        link.close()


def reason(address: str, files: tls.TlsFlags | None) -> str:
    """Why the link does not come to be, as it tells and logs."""
    with linked(address, files) as inbox:
        return inbox.next(Disconnected).reason


@pytest.mark.parametrize("address", ["127.0.0.1:0", "unix:{}/worker"])
def test_who_has_certificates_of_each_others_ca_connects(
    ours: Certificates, tmp_path: Path, address: str
) -> None:
    with (
        secure_worker(ours.both_ways(ours.server()), address.format(tmp_path)) as worker,
        linked(worker.address, ours.both_ways(ours.client())) as inbox,
    ):
        assert inbox.next(Connected).info.vocab_size == 1000


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"days": -1}, "the server's certificate has expired: renew it there"),
        ({"hosts": ("example.org",)}, "the server's certificate is for another host name"),
    ],
)
def test_a_worker_with_a_wrong_certificate_is_not_taken(
    ours: Certificates, caplog, server, words
) -> None:
    with secure_worker(ours.both_ways(ours.server(**server))) as worker:
        assert words in reason(worker.address, ours.both_ways(ours.client()))
        assert f"waiting for the worker at {worker.address} (UNAVAILABLE: {words}" in caplog.text


def test_a_worker_of_another_ca_is_not_taken(ours: Certificates, tmp_path: Path, caplog) -> None:
    theirs = Certificates(tmp_path, "theirs")
    with secure_worker(ours.both_ways(ours.server())) as worker:
        why = reason(worker.address, ours.both_ways(ours.client(), theirs.ca))
    assert "the server's certificate is not signed by the CA that was given" in why
    assert why in caplog.text


def test_a_scheduler_with_a_wrong_certificate_is_refused(
    ours: Certificates, tmp_path: Path, capfd, caplog
) -> None:
    theirs = Certificates(tmp_path, "theirs")
    with secure_worker(ours.both_ways(ours.server())) as worker:
        for files, sign in (
            (theirs.client("stranger"), "unable to get local issuer certificate"),
            (ours.client("late", days=-1), "certificate has expired"),
            (ours.server("wrong purpose"), "unsupported certificate purpose"),
        ):
            assert CLOSED in reason(worker.address, ours.both_ways(files))
            assert CLOSED in caplog.text
            assert f"CERTIFICATE_VERIFY_FAILED: {sign}" in capfd.readouterr().err


def test_a_scheduler_without_tls_is_refused(ours: Certificates, capfd) -> None:
    with secure_worker(ours.both_ways(ours.server())) as worker:
        assert CLOSED in reason(worker.address, None)
        assert "WRONG_VERSION_NUMBER" in capfd.readouterr().err


def test_a_caller_without_a_certificate_is_refused_health_too(ours: Certificates, capfd) -> None:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    credentials = grpc.ssl_channel_credentials(ours.ca.read_bytes())
    with secure_worker(ours.both_ways(ours.server())) as worker:
        with grpc.secure_channel(worker.address, credentials) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            with pytest.raises(grpc.RpcError) as raised:
                health.Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in capfd.readouterr().err


def test_a_worker_without_tls_is_told(ours: Certificates) -> None:
    with running_worker() as worker:
        why = reason(worker.address, ours.both_ways(ours.client()))
    assert why == (
        "UNAVAILABLE: the server does not speak TLS: connect without a CA, or start the server "
        "with TLS"
    )


def test_the_next_connection_has_the_certificates_of_files_that_were_replaced(
    ours: Certificates, caplog
) -> None:
    """An expired client certificate keeps the link down until a valid one is put there."""
    caplog.set_level(logging.INFO)
    with (
        secure_worker(ours.both_ways(ours.server())) as worker,
        linked(worker.address, ours.both_ways(ours.client(days=-1))) as inbox,
    ):
        assert CLOSED in inbox.next(Disconnected).reason
        files = ours.client()  # over the old ones
        assert inbox.next(Connected).info.vocab_size == 1000
    assert f"read again: {files.cert[1]}, {files.key[1]}, {ours.ca}" in caplog.messages


def test_a_worker_takes_a_new_certificate_without_a_restart(ours: Certificates, caplog) -> None:
    files = ours.both_ways(ours.server(days=-1))
    with (
        secure_worker(files) as worker,
        linked(worker.address, ours.both_ways(ours.client())) as inbox,
    ):
        assert "has expired" in inbox.next(Disconnected).reason
        ours.server()
        assert inbox.next(Connected).info.vocab_size == 1000


def test_the_link_logs_that_its_certificate_ends_soon(ours: Certificates, caplog) -> None:
    with running_worker() as worker, linked(worker.address, ours.both_ways(ours.client(days=3))):
        wait_for(lambda: "expires at" in caplog.text, "the end was told")
    (told,) = [r for r in caplog.records if "expires at" in r.getMessage()]
    assert told.getMessage().startswith("--tls-cert ")
