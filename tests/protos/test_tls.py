"""Certificate files: what is wrong with them, and when they end."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from nanoserve import tls
from nanoserve.reloaded import FileError
from tests.certificates import Certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def refusal(flags: tls.TlsFlags) -> str:
    with pytest.raises(FileError) as raised:
        tls.load(flags)
    return str(raised.value)


def test_a_pair_is_read_with_the_ca_of_the_other_side(certificates: Certificates) -> None:
    flags = certificates.both_ways(certificates.server())
    pems = tls.load(flags).get()
    assert pems.cert == Path(flags.cert[1]).read_bytes()
    assert pems.key == Path(flags.key[1]).read_bytes()
    assert pems.ca == certificates.ca.read_bytes()
    names = [name for name, _ in pems.expires]
    assert names == [f"--tls-cert {flags.cert[1]}", f"--ca {certificates.ca}"]


def test_a_key_of_another_certificate_is_refused(certificates: Certificates) -> None:
    one, other = certificates.server("one"), certificates.server("other")
    assert refusal(tls.TlsFlags(one.cert, other.key)) == (
        f"--tls-cert {one.cert[1]}: is not the certificate of --tls-key {other.key[1]}; give a "
        "pair that belongs together, the server's own certificate first"
    )


def test_certificate_and_key_in_each_others_place_are_refused(certificates: Certificates) -> None:
    pair = certificates.server()
    swapped = tls.TlsFlags(("--tls-cert", pair.key[1]), ("--tls-key", pair.cert[1]))
    assert refusal(swapped) == f"--tls-cert {pair.key[1]}: holds no certificate in PEM form"
    key = tls.TlsFlags(pair.cert, ("--tls-key", pair.cert[1]))
    assert refusal(key) == f"--tls-key {pair.cert[1]}: is no private key in PEM form"


def test_a_key_with_a_passphrase_is_refused(certificates: Certificates) -> None:
    pair = certificates.server()
    path = Path(pair.key[1])
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(encoding, form, encryption))
    assert refusal(pair) == (
        f"--tls-key {path}: has a passphrase; give a key without one, in a file that only the "
        "server may read"
    )


def test_files_that_are_not_there_or_hold_nothing_are_refused(certificates: Certificates) -> None:
    pair = certificates.server()
    Path(pair.cert[1]).unlink()
    assert "cannot be read: No such file" in refusal(pair)
    pair = certificates.both_ways(certificates.server())
    certificates.ca.write_text("")
    assert refusal(pair) == f"--ca {certificates.ca}: holds no certificate in PEM form"


def test_a_new_pair_is_taken_once_both_files_are_there(certificates: Certificates) -> None:
    pair = certificates.server()
    files = tls.load(pair)
    old = files.get()
    cert, key = Path(pair.cert[1]), Path(pair.key[1])
    certificates.server()  # writes both anew
    new_cert = cert.read_bytes()
    key_bytes = key.read_bytes()
    key.write_bytes(old.key)
    os.utime(key, ns=(0, 0))  # not of the same moment as the next, as clocks of files tell it
    assert files.get() is old  # the new certificate with the old key
    key.write_bytes(key_bytes)
    assert files.get().cert == new_cert


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [
        (14.1, None, ""),
        (13.9, logging.WARNING, "expires at {end}; renew it"),
        (-0.1, logging.ERROR, "expired at {end}; it is refused until renewed"),
    ],
)
def test_the_log_tells_two_weeks_ahead_that_a_certificate_ends(
    certificates: Certificates, caplog, days, level, words
) -> None:
    pair = certificates.server(days=days)
    tell = tls.tell_expiry()
    pems = tls.load(pair).get()
    for _ in range(3):
        tell(pems)
    ((_, exact),) = pems.expires
    assert abs(exact - datetime.now(UTC) - timedelta(days=days)) < timedelta(minutes=1)
    end = exact.strftime("%Y-%m-%d %H:%M UTC")
    told = [(record.levelno, record.getMessage()) for record in caplog.records]
    text = f"--tls-cert {pair.cert[1]}: {words.format(end=end)}"
    assert told == ([(level, text)] if level else [])
