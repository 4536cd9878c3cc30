"""The cache of fetched models: where it is, and a manifest that tells a whole folder from a damaged
one."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

MANIFEST = "nanoserve_manifest.json"


class FetchError(Exception):
    """The model could not be had; the message says why and what to do."""


def cache_folder() -> Path:
    """$NANOSERVE_CACHE, or .cache at the root of the checkout."""
    override = os.environ.get("NANOSERVE_CACHE")
    if override:
        return Path(override).expanduser().resolve()
    return Path(__file__).resolve().parents[2] / ".cache"


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def sha256_of(path: Path) -> str:
    """Lower-case hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """Records size and SHA-256 of every file of `folder` in it."""
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    entries = {path.name: [path.stat().st_size, sha256_of(path)] for path in files}
    (folder / MANIFEST).write_text(json.dumps(entries, indent=2) + "\n")


def damage(folder: Path) -> str | None:
    """What makes `folder` differ from its manifest, or None if it is as it was written."""
    try:
        entries = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        return f"{MANIFEST}: {error}"
    for name, (size, digest) in entries.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, not {size}"
        if sha256_of(path) != digest:
            return f"{name} has other contents than when it was written"
    return None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`, so that two processes never fetch one model at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
