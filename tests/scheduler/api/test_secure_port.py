"""The clients' port with TLS: who gets in, what is said to who does not, and new certificates."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest

from nanoserve import AsyncClient, UnavailableError
from nanoserve.tls import TlsFlags
from scheduler.api.address import AddressError
from scheduler.api.protection import Protection
from scheduler.api.server import ServerConfig
from tests.certificates import Certificates
from tests.scheduler.api.scripted_engine import ScriptedEngine
from tests.waiting import SECONDS

CLOSED = (
    "UNAVAILABLE: the server closes connections before a call: it wants TLS (give its CA) or, with "
    "TLS, another client certificate (its log says why), or it is going away"
)


@pytest.fixture
def ours(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path, "ours")


@pytest.fixture
def secure(serve):
    """Starts a server with a certificate."""

    async def start(files: TlsFlags, engine: ScriptedEngine | None = None):
        protection = Protection(tls_cert=files.cert[1], tls_key=files.key[1])
        return await serve(engine or ScriptedEngine([5, 2]), protection=protection)

    return start


async def outcome(address: str, **access) -> str:
    async with AsyncClient(address, **access) as client:
        try:
            return str((await client.generate(token_ids=[1], timeout=SECONDS).collect()).token_ids)
        except UnavailableError as error:
            return str(error)


async def subject(address: str, ca: Path) -> str:
    """Whom a new connection to `address` meets."""
    context = ssl.create_default_context(cafile=str(ca))
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    ((_, name),) = writer.get_extra_info("peercert")["subject"][0]
    writer.close()
    return name


async def test_a_client_with_the_right_ca_is_served(secure, ours: Certificates):
    served = await secure(ours.server())
    assert await outcome(served.server.address, tls_ca=ours.ca) == "(5, 2)"
    name = served.server.address.replace("127.0.0.1", "localhost")
    assert await outcome(name, tls_ca=ours.ca) == "(5, 2)"


async def test_another_ca_is_told(secure, ours: Certificates, tmp_path: Path, capfd):
    served = await secure(ours.server())
    assert await outcome(served.server.address, tls_ca=Certificates(tmp_path, "theirs").ca) == (
        "UNAVAILABLE: the server's certificate is not signed by the CA that was given: give the CA "
        "that signed it"
    )
    assert "CERTIFICATE_VERIFY_FAILED: unable to get local issuer" in capfd.readouterr().err


async def test_an_expired_certificate_is_told_on_both_sides(secure, ours: Certificates, caplog):
    files = ours.server(days=-1)
    served = await secure(files)
    assert await outcome(served.server.address, tls_ca=ours.ca) == (
        "UNAVAILABLE: the server's certificate has expired: renew it there"
    )
    (told,) = [r for r in caplog.records if r.name == "nanoserve.tls"]
    assert told.levelno == logging.ERROR
    assert told.getMessage().startswith(f"--tls-cert {files.cert[1]}: expired at ")


async def test_another_host_name_is_told(secure, ours: Certificates):
    served = await secure(ours.server(hosts=("example.org",)))
    assert await outcome(served.server.address, tls_ca=ours.ca) == (
        "UNAVAILABLE: the server's certificate is for another host name: dial a name or an address "
        "that it lists, or give the server a certificate for this one"
    )


async def test_a_client_without_tls_is_told_on_both_sides(secure, ours: Certificates, capfd):
    served = await secure(ours.server())
    assert await outcome(served.server.address) == CLOSED
    assert "Handshake failed" in (log := capfd.readouterr().err)
    assert "WRONG_VERSION_NUMBER" in log


async def test_a_client_with_tls_is_told_that_the_server_has_none(serve, ours: Certificates):
    served = await serve(ScriptedEngine([5, 2]))
    assert await outcome(served.server.address, tls_ca=ours.ca) == (
        "UNAVAILABLE: the server does not speak TLS: connect without a CA, or start the server "
        "with TLS"
    )


async def test_a_stream_goes_on_through_a_new_certificate_which_the_next_connection_gets(
    secure, ours: Certificates
):
    files = ours.server("server")
    engine = ScriptedEngine([5] * 5000 + [2], step_seconds=0.02)
    served = await secure(files, engine)
    address = served.server.address
    async with AsyncClient(address, tls_ca=ours.ca) as client:
        generation = client.generate(token_ids=[1])
        tokens = len((await anext(generation)).token_ids)
        assert await subject(address, ours.ca) == "server"
        other = ours.server("other")
        for new, old in ((other.cert, files.cert), (other.key, files.key)):
            Path(new[1]).replace(old[1])
        assert await subject(address, ours.ca) == "other"
        engine.finish()
        after_change = 0
        async for chunk in generation:
            after_change += len(chunk.token_ids)
        assert tokens + after_change == 5001
    assert await outcome(address, tls_ca=ours.ca) != CLOSED


async def test_a_broken_new_certificate_leaves_the_old_one_and_is_logged(
    secure, ours: Certificates, caplog
):
    files = ours.server("server")
    served = await secure(files)
    served.server._tls._second_look = 0.0
    Path(files.cert[1]).write_text("nothing")
    for _ in range(3):
        assert await subject(served.server.address, ours.ca) == "server"
    (told,) = [r for r in caplog.records if r.name == "nanoserve.reloaded"]
    assert (told.levelno, told.getMessage()) == (
        logging.ERROR,
        f"--tls-cert {files.cert[1]}: holds no certificate in PEM form; what was read before stays "
        "in use",
    )


MISSING = "give them (python -m deploy.secrets init makes the files), use 127.0.0.1, or say"


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, "--tls-cert, --tls-key and --token-hashes"),
        ({"tls_cert": "c", "tls_key": "k"}, "--token-hashes"),
        ({"token_hashes": "t"}, "--tls-cert and --tls-key"),
    ],
)
def test_half_of_the_protection_is_not_enough_beyond_this_machine(given, missing):
    with pytest.raises(AddressError) as raised:
        ServerConfig(listen="0.0.0.0:1", protection=Protection(**given))
    assert str(raised.value) == (
        f"--listen 0.0.0.0:1: others can reach it, without {missing}: {MISSING} --insecure"
    )
    ServerConfig(listen="0.0.0.0:1", protection=Protection(**given, insecure=True))
    ServerConfig(listen="127.0.0.1:1", protection=Protection(**given))


def test_all_of_the_protection_is_enough_and_a_key_without_a_certificate_never():
    whole = Protection(tls_cert="c", tls_key="k", token_hashes="t")
    ServerConfig(listen="0.0.0.0:1", protection=whole)
    with pytest.raises(ValueError, match="--tls-key k: needs --tls-cert as well"):
        Protection(tls_key="k", insecure=True)
