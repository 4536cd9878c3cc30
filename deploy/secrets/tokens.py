"""Adds tokens to a server's file of hashes."""

from __future__ import annotations

from pathlib import Path

from deploy.secrets.files import read_if_there, write_secret
from scheduler.api.token_hashes import hash_line, make_token


def add_token(hashes: Path, name: str, *, replace: bool = False, token: str = "") -> str:
    """Writes the hash of a token, a new one unless it is given, and returns the token, which
    nothing can tell a second time. Raises ValueError for a name that cannot be, or that has a
    token unless `replace`, and OSError."""
    token = token or make_token()
    line = hash_line(name, token)
    text = (read_if_there(hashes) or b"").decode()
    kept = [old for old in text.splitlines() if old.partition(":")[0].strip() != name]
    if len(kept) < len(text.splitlines()) and not replace:
        raise ValueError(f"{hashes}: {name} has a token; --replace gives it another")
    write_secret(hashes, "".join(f"{one}\n" for one in [*kept, line]).encode())
    return token
