"""Huge pages for what a CPU reads in every step: the weights and the K/V pool.

A step streams through all weights. In pages of 4 KiB a processor's prefetchers stop at each page's
end and address translation misses its caches: products of one row of SmolLM2 took 1.3 times as
long. Linux gives huge pages to what asks for them (madvise(2)); the libraries that allocate the
weights do not ask, so the process asks for all of its large memory.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

log = logging.getLogger(__name__)

HUGE_PAGE = 2 << 20  # bytes, x86-64's and, with pages of 4 KiB, 64-bit Arm's
# Beyond a thread's stack, of which a huge page would only waste memory.
_LEAST_BYTES = 16 << 20
_MADV_HUGEPAGE = 14  # later faults bring huge pages
_MADV_COLLAPSE = 25  # what is there moves into huge pages; since Linux 6.1


def use_huge_pages() -> None:
    """Puts this process's large memory, present and to come, into huge pages, as far as the
    system has them: it is no error if it has none."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    for start, size in large_ranges(Path("/proc/self/maps").read_text().splitlines()):
        for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), advice)
    log.info("%d MiB in huge pages", bytes_in_huge_pages() >> 20)


def large_ranges(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """(address, bytes), in whole huge pages, of the large private anonymous memory in `maps`, the
    lines of /proc/PID/maps (proc_pid_maps(5))."""
    for line in maps:
        addresses, permissions, _, _, inode, *name = line.split(maxsplit=5)
        if not permissions.startswith("rw") or not permissions.endswith("p"):
            continue
        if inode != "0" or (name and name[0] != "[heap]"):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        if end - start >= _LEAST_BYTES:
            yield start, end - start


def bytes_in_huge_pages() -> int:
    """Of this process's anonymous memory; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    sizes = (line.split()[1] for line in lines if line.startswith("AnonHugePages:"))
    return 1024 * sum(map(int, sizes))
