"""Files that only their owner may read, each whole or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_secret(path: Path, content: bytes) -> None:
    """Replaces `path`, mode 0600, in one step; makes its folder, mode 0700. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
