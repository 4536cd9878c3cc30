"""Files that are read again when they change."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from nanoserve.reloaded import FileError, Reloaded, all_or_none, read_bytes
from tests.waiting import wait_for


def number_in(path: Path, second_look: float = 0.0) -> Reloaded[int]:
    def read() -> int:
        text = read_bytes("--number", str(path))
        if not text.isdigit():
            raise FileError(f"--number {path}: holds no number")
        return int(text)

    return Reloaded([str(path)], read, second_look)


def replace(path: Path, text: str) -> None:
    other = path.with_suffix(".other")
    other.write_text(text)
    os.replace(other, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "number"
    file.write_text("1")
    return file


def test_a_file_is_read_again_when_it_was_written_or_replaced(path: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    number = number_in(path)
    assert [number.get(), number.get()] == [1, 1]
    assert caplog.messages == []
    path.write_text("22")
    assert number.get() == 22
    replace(path, "33")
    assert number.get() == 33
    assert caplog.messages == [f"read again: {path}"] * 2


def test_a_link_that_points_elsewhere_is_a_change(path: Path, tmp_path: Path) -> None:
    link, second = tmp_path / "link", tmp_path / "second"
    second.write_text("2")
    link.symlink_to(path)
    number = number_in(link)
    assert number.get() == 1
    link.unlink()
    link.symlink_to(second)
    assert number.get() == 2


def test_a_wrong_file_keeps_the_value_and_is_told_once_and_the_next_good_one_is_taken(
    path: Path, caplog
) -> None:
    number = number_in(path)
    path.write_text("none")
    assert [number.get() for _ in range(5)] == [1] * 5
    wrong = f"--number {path}: holds no number; what was read before stays in use"
    assert caplog.messages == [wrong]
    path.unlink()
    assert [number.get() for _ in range(5)] == [1] * 5
    gone = f"--number {path}: cannot be read: No such file or directory"
    assert caplog.messages == [wrong, f"{gone}; what was read before stays in use"]
    path.write_text("4")
    assert number.get() == 4
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


def test_a_file_that_is_wrong_for_a_moment_is_not_told_of(path: Path, caplog) -> None:
    number = number_in(path, second_look=3600)
    path.write_text("")
    assert [number.get(), number.get()] == [1, 1]
    path.write_text("5")
    assert number.get() == 5
    assert caplog.messages == []


def test_a_good_file_is_read_after_a_wrong_one_though_it_looks_like_the_last_good_one(
    path: Path,
) -> None:
    """File systems use a number again at once, and many tell times to some milliseconds."""
    number, before = number_in(path), path.stat()
    path.write_text("none")
    assert number.get() == 1
    path.write_text("2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert number.get() == 2


def test_the_first_read_raises(path: Path) -> None:
    path.write_text("none")
    with pytest.raises(FileError, match="holds no number"):
        number_in(path)


def test_a_watched_file_is_looked_at_though_nobody_asks_until_it_is_closed(path: Path) -> None:
    number, seen = number_in(path), []
    number.watch(seen.append, seconds=0.001)
    assert seen[0] == 1
    path.write_text("22")
    wait_for(lambda: seen[-1] == 22, "the change was seen")
    number.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("a", None), "--one a: needs --two as well: give all of them or none"),
        ((None, "b"), "--two b: needs --one as well: give all of them or none"),
        (("", "b"), "--two b: needs --one as well: give all of them or none"),
    ],
)
def test_half_of_the_flags_is_refused(values, message) -> None:
    with pytest.raises(FileError) as raised:
        all_or_none(("--one", values[0]), ("--two", values[1]))
    assert str(raised.value) == message


def test_all_of_the_flags_or_none_is_taken() -> None:
    assert all_or_none(("--one", "a"), ("--two", "b"))
    assert not all_or_none(("--one", None), ("--two", ""))
