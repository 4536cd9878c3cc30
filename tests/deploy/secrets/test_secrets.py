"""`python -m deploy.secrets`: what it makes, and that it makes nothing twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography import x509

from deploy.secrets.__main__ import main
from deploy.secrets.authority import CLIENT, SERVER, Authority, Pair, days_left, hosts_of
from deploy.secrets.folder import SecretsFolder
from nanoserve import tls
from scheduler.api.token_hashes import read_hashes

FILES = {
    "ca": {"ca.pem", "ca-key.pem"},
    "scheduler": {
        *("ca.pem", "tls.pem", "tls-key.pem", "worker-tls.pem", "worker-tls-key.pem"),
        "token-hashes",
    },
    "worker": {"ca.pem", "tls.pem", "tls-key.pem"},
    "client": {"ca.pem", "token"},
}


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def made(root: Path, *hosts: str, renew: bool = False) -> list[str]:
    told: list[str] = []
    SecretsFolder(root, told.append).make(hosts, ("worker",), renew=renew)
    return told


def purposes(cert: bytes) -> set[x509.ObjectIdentifier]:
    extensions = x509.load_pem_x509_certificate(cert).extensions
    return set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made(tmp_path / "secrets", "llm", "10.0.0.7")
    return tmp_path / "secrets"


def test_each_gets_what_it_needs_in_files_that_only_the_owner_reads(root: Path) -> None:
    assert {p.name: {f.name for f in p.iterdir()} for p in root.iterdir()} == FILES
    assert {oct(p.stat().st_mode & 0o777) for p in root.rglob("*") if p.is_file()} == {"0o600"}
    assert {oct(p.stat().st_mode & 0o777) for p in root.iterdir()} == {"0o700"}
    files = contents(root)
    scheduler, link, worker = (
        files[f"{name}.pem"] for name in ("scheduler/tls", "scheduler/worker-tls", "worker/tls")
    )
    local = {"localhost", "127.0.0.1", "::1"}
    assert hosts_of(scheduler) == {"llm", "10.0.0.7"} | local
    assert (hosts_of(link), hosts_of(worker)) == (frozenset(), {"worker"} | local)
    assert [purposes(cert) for cert in (scheduler, link, worker)] == [
        *({SERVER}, {CLIENT}, {SERVER, CLIENT})
    ]
    assert [round(days_left(cert)) for cert in (scheduler, files["ca/ca.pem"])] == [365, 3650]
    ca = x509.load_pem_x509_certificate(files["ca/ca.pem"])
    for cert in (scheduler, link, worker):
        x509.load_pem_x509_certificate(cert).verify_directly_issued_by(ca)


def test_the_servers_read_what_was_made_and_the_token_is_the_hashed_one(root: Path) -> None:
    for folder, cert in (("scheduler", "tls"), ("scheduler", "worker-tls"), ("worker", "tls")):
        paths = (f"{cert}.pem", f"{cert}-key.pem", "ca.pem")
        tls.load(tls.TlsFlags(*(("--f", str(root / folder / name)) for name in paths)))
    token = (root / "client/token").read_text().strip()
    assert read_hashes(str(root / "scheduler/token-hashes")).owner(token) == "first"
    assert token.encode() not in (root / "scheduler/token-hashes").read_bytes()


def test_again_it_does_nothing(root: Path) -> None:
    before = contents(root)
    assert made(root, "10.0.0.7", "llm") == []
    assert made(root, "10.0.0.7", "llm", renew=True) == []
    assert contents(root) == before


def test_what_is_missing_or_for_other_hosts_is_made_and_nothing_else(root: Path) -> None:
    before = contents(root)
    (root / "worker/tls-key.pem").unlink()
    assert made(root, "llm", "10.0.0.7") == ["worker/tls-key.pem", "worker/tls.pem"]
    assert made(root, "llm") == ["scheduler/tls-key.pem", "scheduler/tls.pem"]
    changed = {name for name, content in contents(root).items() if content != before[name]}
    assert changed == {
        f"{n}{end}.pem" for n in ("worker/tls", "scheduler/tls") for end in ("", "-key")
    }


def test_an_address_is_the_same_however_it_is_written(root: Path) -> None:
    made(root, "fd00::0:1")
    assert made(root, "FD00:0:0:0:0:0:0:1") == []


def test_another_ca_signs_everything_anew_and_only_that_is_trusted(root: Path) -> None:
    old = x509.load_pem_x509_certificate((root / "ca/ca.pem").read_bytes())
    for path in (root / "ca").iterdir():
        path.unlink()
    token = (root / "client/token").read_bytes()
    made(root, "llm", "10.0.0.7")
    files = contents(root)
    (new,) = x509.load_pem_x509_certificates(files["client/ca.pem"])
    assert new != old
    for name in ("scheduler/tls", "scheduler/worker-tls", "worker/tls"):
        x509.load_pem_x509_certificate(files[f"{name}.pem"]).verify_directly_issued_by(new)
    assert files["client/token"] == token
    assert made(root, "llm", "10.0.0.7") == []


def test_a_token_that_was_taken_out_of_the_folder_is_not_made_again(root: Path) -> None:
    (root / "client/token").unlink()
    assert made(root, "llm", "10.0.0.7") == []


def test_the_hash_of_a_token_that_is_there_is_made_again(root: Path) -> None:
    token = (root / "client/token").read_text()
    (root / "scheduler/token-hashes").unlink()
    assert made(root, "llm", "10.0.0.7") == ["scheduler/token-hashes"]
    assert read_hashes(str(root / "scheduler/token-hashes")).owner(token.strip()) == "first"


def test_what_ends_soon_is_told_of_and_renewed_when_that_is_said(root: Path) -> None:
    files = contents(root)
    authority = Authority(Pair(files["ca/ca.pem"], files["ca/ca-key.pem"]))
    late = authority.issue("late", ("worker", "localhost", "127.0.0.1", "::1"), [SERVER], days=29.5)
    (root / "worker/tls.pem").write_bytes(late.cert)
    (root / "worker/tls-key.pem").write_bytes(late.key)
    assert made(root, "llm", "10.0.0.7") == ["worker/tls.pem ends in 29 days: say --renew"]
    assert made(root, "llm", "10.0.0.7", renew=True) == ["worker/tls-key.pem", "worker/tls.pem"]
    assert days_left((root / "worker/tls.pem").read_bytes()) > 364


def test_a_ca_that_ends_is_replaced_with_all_it_signed_and_trusted_until_then(root: Path) -> None:
    old = Authority.create("old", days=20)
    (root / "ca/ca.pem").write_bytes(old.pair.cert)
    (root / "ca/ca-key.pem").write_bytes(old.pair.key)
    for path in root.rglob("*tls*"):
        path.unlink()
    made(root, "llm")
    assert days_left((root / "worker/tls.pem").read_bytes()) < 20.1
    made(root, "llm", renew=True)
    files = contents(root)
    new, before = x509.load_pem_x509_certificates(files["client/ca.pem"])
    assert before == x509.load_pem_x509_certificate(old.pair.cert)
    for name in ("scheduler/tls", "scheduler/worker-tls", "worker/tls"):
        x509.load_pem_x509_certificate(files[f"{name}.pem"]).verify_directly_issued_by(new)
    assert made(root, "llm", renew=True) == []


def test_a_ca_without_its_key_is_an_error_that_leaves_all_as_it_is(root: Path, capsys) -> None:
    (root / "ca/ca-key.pem").unlink()
    before = contents(root)
    assert main(["init", str(root)]) == 1
    assert capsys.readouterr().err == (
        f"deploy.secrets: {root}/ca/ca.pem: ca-key.pem is missing beside it\n"
    )
    assert contents(root) == before


def test_a_token_is_printed_once_and_its_hash_added(root: Path, capsys) -> None:
    path = root / "scheduler/token-hashes"
    flags = ["--hashes", str(path)]
    assert main(["token", "bob", *flags]) == 0
    token = capsys.readouterr().out.strip()
    first = (root / "client/token").read_text().strip()
    hashes = read_hashes(str(path))
    assert [hashes.owner(one) for one in (first, token)] == ["first", "bob"]
    assert main(["token", "bob", *flags]) == 1
    assert "bob has a token; --replace" in capsys.readouterr().err
    assert main(["token", "bob", "--replace", *flags]) == 0
    other = capsys.readouterr().out.strip()
    hashes = read_hashes(str(path))
    assert [hashes.owner(one) for one in (first, token, other)] == ["first", None, "bob"]


def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("deploy.secrets: ")
    assert os.listdir(tmp_path) == ["file"]
