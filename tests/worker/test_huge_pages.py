import subprocess
import sys
from pathlib import Path

import pytest

from worker.huge_pages import HUGE_PAGE, large_ranges

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_TRIES = 10
_ASKED = 16  # MiB, at the end of the program
_PROGRAM = """
import mmap
from worker.huge_pages import bytes_in_huge_pages, use_huge_pages

memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(0, 32 << 20, 4096):
    memory[page] = 1 + page // 4096 % 255
before = bytes_in_huge_pages()
use_huge_pages()
whole = all(memory[page] == 1 + page // 4096 % 255 for page in range(0, 32 << 20, 4096))
present = bytes_in_huge_pages() - before
for page in range(32 << 20, 64 << 20, 4096):
    memory[page] = 1
all_of_it = bytes_in_huge_pages() - before
asked = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
asked.madvise(mmap.MADV_HUGEPAGE)
for page in range(0, 16 << 20, 4096):
    asked[page] = 1
free = bytes_in_huge_pages() - before - all_of_it
print(whole, present >> 20, all_of_it >> 20, free >> 20)
"""


def test_large_private_anonymous_memory_is_chosen_in_whole_huge_pages():
    maps = [
        "7f0000100000-7f0003f00000 rw-p 00000000 00:00 0 ",
        "55a000000000-55a002000000 rw-p 00000000 00:00 0                     [heap]",
    ]
    assert list(large_ranges(maps)) == [
        (0x7F0000200000, 0x3C00000),
        (0x55A000000000, 0x2000000),
    ]
    assert all(size % HUGE_PAGE == 0 for _, size in large_ranges(maps))


@pytest.mark.parametrize(
    "other",
    [
        "7f0000000000-7f0000800000 rw-p 00000000 00:00 0 ",  # of a thread stack's size
        "7f0000000000-7f0004000000 r--p 00000000 00:00 0 ",
        "7f0000000000-7f0004000000 ---p 00000000 00:00 0 ",
        "7f0000000000-7f0004000000 rw-s 00000000 00:01 77     /dev/shm/shared",
        "7f0000000000-7f0004000000 rw-p 00000000 fe:00 77     /a/library with spaces.so",
        "7ffe00000000-7ffe04000000 rw-p 00000000 00:00 0      [stack]",
    ],
)
def test_other_memory_is_left_alone(other):
    assert not list(large_ranges([other]))


@pytest.mark.skipif(
    not _SETTING.exists() or "[never]" in _SETTING.read_text(),
    reason="this system has no transparent huge pages",
)
def test_memory_present_and_to_come_gets_huge_pages_and_keeps_its_content():
    run = [sys.executable, "-c", _PROGRAM]
    # What a full machine cannot give in one piece is no error, so less than all may be huge. That
    # nothing is moved, if the first piece is not there, ends as the system makes room.
    for _ in range(_TRIES):
        whole, *sizes = subprocess.check_output(run, text=True).split()[-4:]
        assert whole == "True"
        present, all_of_it, free = map(int, sizes)
        if (present > 0 or _too_old_to_move_pages()) and all_of_it > present:
            return
    if free < _ASKED:
        pytest.skip(f"this system gives {free} of {_ASKED} MiB in huge pages to who asks for them")
    pytest.fail(f"{present} MiB present and {all_of_it} in all are in huge pages")


def _too_old_to_move_pages() -> bool:
    major, minor = map(int, Path("/proc/sys/kernel/osrelease").read_text().split(".")[:2])
    return (major, minor) < (6, 1)
