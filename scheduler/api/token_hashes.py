"""Who may call: a file with the hash of each token, so that it gives no token away.

A line is NAME:HASH, the hash being the SHA-256 of the token in hex; # begins a comment. A token
is 256 random bits, which nobody finds by trying: a slow hash would protect nothing more.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from nanoserve.reloaded import FileError, Reloaded, read_bytes

FLAG = "--token-hashes"
# So that a scanner for leaked secrets, and a reader, know what it is.
_PREFIX = "ns_"
_LINE = re.compile(r"([A-Za-z0-9._-]{1,64}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class TokenHashes:
    """Names with their tokens' hashes, 32 bytes each."""

    entries: tuple[tuple[str, bytes], ...]

    def owner(self, token: str) -> str | None:
        """Whose token it is, or None; takes as long either way."""
        digest = _digest(token)
        found: str | None = None
        for name, known in self.entries:
            if hmac.compare_digest(digest, known):
                found = name
        return found


def make_token() -> str:
    """256 bits from the system's generator, as ASCII."""
    return _PREFIX + secrets.token_urlsafe(32)


def hash_line(name: str, token: str) -> str:
    """The line of the file. Raises ValueError for a name that it cannot have."""
    line = f"{name}:{_digest(token).hex()}"
    if not _LINE.fullmatch(line):
        raise ValueError(f"name {name!r}: must be 1 to 64 of letters, digits, '.', '_' and '-'")
    return line


def read_hashes(path: str) -> TokenHashes:
    """Raises FileError; no message has a line's text, which may be a token put there by mistake."""
    entries: dict[str, bytes] = {}
    text = read_bytes(FLAG, path).decode("ascii", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise FileError(
                f"{FLAG} {path}: line {number} is not NAME:HASH with 64 lower-case hex digits; "
                "python -m deploy.secrets token writes such lines"
            )
        if match[1] in entries:
            raise FileError(f"{FLAG} {path}: line {number} has a name that an earlier line has")
        entries[match[1]] = bytes.fromhex(match[2])
    if not entries:
        raise FileError(
            f"{FLAG} {path}: holds no token, so that nobody could call; python -m deploy.secrets "
            "token adds one"
        )
    return TokenHashes(tuple(entries.items()))


def load_hashes(path: str) -> Reloaded[TokenHashes]:
    """Raises FileError."""
    return Reloaded([path], lambda: read_hashes(path))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
