"""How a client is told which server to use, and what it may send there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanoserve import AsyncClient, Client
from nanoserve.access import Access, access_from
from nanoserve.channel import DEFAULT_ADDRESS
from nanoserve.cli.main import main
from nanoserve.connection_trouble import trouble, worker_trouble
from tests.certificates import Certificates
from tests.protos.scripted_server import ScriptedServer

FAR = "llm.example.org:50051"


@pytest.fixture
def ca(tmp_path: Path) -> str:
    return str(Certificates(tmp_path).ca)


def test_a_token_is_not_sent_unencrypted_to_another_machine(ca: str) -> None:
    message = (
        f"the token is not sent to {FAR} unencrypted: give the server's CA "
        "(tls_ca, --tls-ca or NANOSERVE_TLS_CA)"
    )
    for make in (Access, Client):
        with pytest.raises(ValueError, match="not sent") as raised:
            make(FAR, token="secret")
        assert str(raised.value) == message
    with pytest.raises(ValueError, match="not sent"):
        AsyncClient(FAR, token="secret")
    for address, tls_ca in ((FAR, ca), ("127.0.0.1:1", None), ("unix:/s", None)):
        access = Access(address, tls_ca, "secret")
        assert access.metadata == (("authorization", "Bearer secret"),)


def test_a_token_is_in_no_representation() -> None:
    assert "secret" not in repr(Access(token="secret"))


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:0",
        "host:65536",
        "host:-1",
        "a b:1",
        "http://host:1",
        "::1:5",
    ],
)
def test_an_address_of_another_form_is_told_at_once(address: str) -> None:
    for make in (Access, Client, AsyncClient):
        with pytest.raises(ValueError, match="give HOST:PORT") as raised:
            make(address)
        assert str(raised.value) == f"address {address!r}: give HOST:PORT or unix:PATH"


@pytest.mark.parametrize("address", ["h-1.example_:1", "[::1]:65535", "unix:s", "dns:///host:1"])
def test_addresses_that_grpc_can_dial_are_taken(address: str) -> None:
    assert Access(address).address == address


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "é", "a\x00"])
def test_what_no_header_can_carry_is_no_token(token: str) -> None:
    with pytest.raises(ValueError, match="empty or has characters other than") as raised:
        Access(token=token)
    assert not token or token not in str(raised.value)


def test_a_ca_file_that_cannot_be_used_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    with pytest.raises(ValueError, match=rf"CA file {path}: cannot be read: No such file"):
        Client(FAR, tls_ca=path)
    path.write_text("nothing")
    with pytest.raises(ValueError, match=rf"CA file {path}: holds no certificate in PEM"):
        Client(FAR, tls_ca=path)


def test_system_stands_for_public_certificates() -> None:
    access = Access(FAR, "system", "secret")
    assert (access.is_encrypted, access.roots) == (True, None)


def test_flags_beat_the_environment_and_a_token_its_file(tmp_path: Path, ca: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("from-one\n")
    two.write_text("from-two\n")
    assert access_from({}) == Access(DEFAULT_ADDRESS)
    assert access_from({"NANOSERVE_ADDRESS": "", "NANOSERVE_TOKEN": ""}) == Access(DEFAULT_ADDRESS)
    environment = {
        "NANOSERVE_ADDRESS": FAR,
        "NANOSERVE_TLS_CA": ca,
        "NANOSERVE_TOKEN_FILE": str(one),
    }
    assert access_from(environment) == Access(FAR, ca, "from-one")
    both = environment | {"NANOSERVE_TOKEN": "from-variable"}
    assert access_from(both) == Access(FAR, ca, "from-variable")
    assert access_from(both, "unix:/s", "system", str(two)) == Access(
        "unix:/s", "system", "from-two"
    )


@pytest.mark.parametrize("text", ["", "two tokens", "a\nb", "\xff"])
def test_a_token_file_with_anything_else_is_refused_without_showing_it(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="token file") as raised:
        access_from({}, token_file=str(path))
    assert str(raised.value) == f"token file {path}: must hold one token and nothing else"


@pytest.mark.parametrize(
    "details", [None, "", "no worker yet", "failed to connect to all addresses; Connection refused"]
)
def test_other_failures_are_none_of_tls(details) -> None:
    assert trouble(details) is None


def test_only_of_a_worker_that_never_served_are_closed_connections_put_down_to_certificates() -> (
    None
):
    closed = "failed to connect to all addresses; last error: UNAVAILABLE: unix:/w: Socket closed"
    assert worker_trouble(closed, served_before=False) == trouble(closed)
    assert "it is ending" in (worker_trouble(closed, served_before=True) or "")
    expired = "failed to connect: CERTIFICATE_VERIFY_FAILED: certificate has expired"
    assert worker_trouble(expired, served_before=True) == trouble(expired)
    assert worker_trouble("Stream removed", served_before=True) is None


def test_the_command_takes_all_of_it_from_the_environment_or_flags(
    server: ScriptedServer, tmp_path: Path, monkeypatch, capsys
) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    seen: list[str] = []
    answer = server.handler

    def handler(request, context):
        seen.append(dict(context.invocation_metadata()).get("authorization"))
        return answer(request, context)

    server.handler = handler
    for environment, flags in (
        ({"NANOSERVE_TOKEN": "secret"}, ()),
        ({"NANOSERVE_TOKEN_FILE": str(token)}, ()),
        ({"NANOSERVE_TOKEN": "other"}, ("--token-file", str(token))),
        ({}, ()),
    ):
        for name in ("ADDRESS", "TLS_CA", "TOKEN", "TOKEN_FILE"):
            monkeypatch.delenv(f"NANOSERVE_{name}", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert main(["generate", "--address", server.address, *flags, "Hi"]) == 0
    assert seen == ["Bearer secret"] * 3 + [None]
    assert capsys.readouterr() == ("Hello world\n" * 4, "")


@pytest.mark.parametrize("command", [["generate", "Hi"], ["chat"], ["status"], ["top", "--once"]])
def test_every_command_refuses_to_send_a_token_in_the_clear(command, monkeypatch, capsys) -> None:
    monkeypatch.setenv("NANOSERVE_TOKEN", "secret-of-ours")
    monkeypatch.delenv("NANOSERVE_TLS_CA", raising=False)
    assert main([*command, "--address", FAR]) == 2
    output, error = capsys.readouterr()
    assert (output, error) == (
        "",
        f"nanoserve: the token is not sent to {FAR} unencrypted: give the server's CA (tls_ca, "
        "--tls-ca or NANOSERVE_TLS_CA)\n",
    )
