"""A folder for dumps that never holds more than a few, nor more than so many bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from worker.recording import Entry, RecordingFile

MAX_FILES = 5
MAX_BYTES = 256 << 20

_OURS = re.compile(r"steps-\d{8}T\d{6}\.\d{6}Z-[a-z]+\.bin")


class DumpFolder:
    """Makes the folder if need be. Raises OSError where it cannot be written.

    Files that are not named as ours are neither counted nor removed.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(f"{path}: cannot be written")
        self.path = path
        self._max_bytes = max_bytes

    def write(self, reason: str, entries: Sequence[Entry]) -> Path:
        """A file with its time (UTC) and the reason in its name; the oldest go before it is
        written. Raises OSError, and ValueError for one that is larger than all may be."""
        # Each has a length of at most 5 bytes before it.
        size = sum(entry.ByteSize() + 5 for entry in entries)
        if size > self._max_bytes:
            raise ValueError(f"it has {size} bytes, must be at most {self._max_bytes}")
        self._make_room(size)
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        file = RecordingFile(self.path / f"steps-{now}-{reason}.bin")
        try:
            file.write(entries)
        finally:
            file.close()
        return file.path

    def _make_room(self, size: int) -> None:
        files = sorted(path for path in self.path.iterdir() if _OURS.fullmatch(path.name))
        sizes = [path.stat().st_size for path in files]
        while files and (len(files) >= MAX_FILES or sum(sizes) + size > self._max_bytes):
            files.pop(0).unlink(missing_ok=True)
            sizes.pop(0)
