"""The file with the hashes of the tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from nanoserve.reloaded import FileError
from scheduler.api.token_hashes import hash_line, make_token, read_hashes

A, B = "ns_" + "a" * 43, "ns_" + "b" * 43


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hashes"


def test_a_token_is_256_random_bits_and_the_file_has_its_sha256():
    tokens = {make_token() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {len("ns_") + 43}  # 43 * 6 bits hold 256
    assert hash_line("a.b-c_1", A) == f"a.b-c_1:{hashlib.sha256(A.encode()).hexdigest()}"


def test_each_token_has_its_owner_and_no_other_has_one(path: Path):
    path.write_text(f"# ours\n\n{hash_line('ann', A)}  # since May\n {hash_line('bob', B)}\n")
    hashes = read_hashes(str(path))
    assert [hashes.owner(token) for token in (A, B)] == ["ann", "bob"]
    wrong = (A[:-1], A + "a", "", A.upper(), hashlib.sha256(A.encode()).hexdigest(), "\udce9é")
    assert [hashes.owner(token) for token in wrong] == [None] * len(wrong)


def test_every_entry_is_compared_whichever_fits(path: Path, monkeypatch):
    path.write_text("".join(f"{hash_line(f'n{i}', make_token())}\n" for i in range(5)))
    hashes, compared = read_hashes(str(path)), []
    monkeypatch.setattr(
        "hmac.compare_digest", lambda a, b: compared.append(b) or len(compared) == 2
    )
    assert hashes.owner(A) == "n1"
    assert compared == [digest for _, digest in hashes.entries]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (A, "line 1 is not NAME:HASH with 64 lower-case hex digits"),
        (f"ann:{A}", "line 1 is not NAME:HASH"),
        (f"{hash_line('ann', A)}\n{hash_line('ann', B)}", "line 2 has a name that an earlier"),
        (hash_line("ann", A).upper(), "line 1 is not NAME:HASH"),
        ("# nobody\n", "holds no token, so that nobody could call"),
        ("", "holds no token, so that nobody could call"),
        ("\xff\xfe", "line 1 is not NAME:HASH"),
    ],
)
def test_a_wrong_file_is_refused_without_a_word_of_what_it_has(path: Path, text, words):
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FileError) as raised:
        read_hashes(str(path))
    assert str(raised.value).startswith(f"--token-hashes {path}: {words}")
    assert "python -m deploy.secrets token" in str(raised.value) or "earlier" in words
    assert "aaa" not in str(raised.value)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a#b", "x" * 65, "ü", "a\n"])
def test_a_name_that_the_file_cannot_have_is_refused(name):
    with pytest.raises(ValueError, match="1 to 64 of letters"):
        hash_line(name, A)
